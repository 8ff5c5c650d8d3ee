"""Merge studies of different texts, for instance of parts of one corpus, into one study."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from headscope.errors import StudyError
from headscope.run.engines import WHOLE, format_share, format_shares, parse_shares
from headscope.run.state import HASH_MODULUS
from headscope.settings import Use, get_value, list_matching
from headscope.studies.example_arrays import merge_tokens
from headscope.studies.labels import add_derived_variables
from headscope.studies.result import JSON_ATTRIBUTES, Study
from headscope.tally.quantities import BY_NAME, RELATION_QUANTITIES

RELATION_NAMES = tuple(quantity.name for quantity in RELATION_QUANTITIES)
SOURCES = ("source", "source_documents", "source_hash")


def merge_studies(first: Study, second: Study, *, allow_changed_files: bool = False) -> Study:
    """Return the study of both corpora; see `Study.merge`."""
    _check_mergeable(first, second, allow_changed_files=allow_changed_files)
    ids = {**_map_token_ids(first), **_map_token_ids(second)}
    tokens = sorted(ids, key=lambda token: ids[token])
    left, right = (study.data.drop_vars(SOURCES, errors="ignore") for study in (first, second))
    left, right = (data.reindex(token=tokens, fill_value=0) for data in (left, right))
    left, right = _align_relations(left, right)
    summed_names = [name for name in (*BY_NAME, "most_attended") if name in left]
    summed_names += [f"{name}_blocks" for name in summed_names if f"{name}_blocks" in left]
    sums = {name: left[name].variable + right[name].variable for name in summed_names}
    for name, variable in sums.items():
        variable.attrs = dict(left[name].attrs)
    coordinates = left[[name for name in left.coords if name not in ("distance", "token_id")]]
    data = coordinates.assign(sums).assign_coords(
        token_id=("token", np.array([ids[token] for token in tokens], dtype=np.int64))
    )
    data = data.assign(merge_tokens(first.data, second.data))
    data = add_derived_variables(_assign_sources(data, first, second, add_up=_has_shares(first, second)))
    return Study(data.assign_attrs(_merge_attributes(first.manifest, second.manifest)))


def _align_relations(left: xr.Dataset, right: xr.Dataset) -> tuple[xr.Dataset, xr.Dataset]:
    """Return both datasets with the labelled relations of either."""
    labels = sorted({label for data in (left, right) if "relation" in data for label in data["relation"].values})
    if not labels:
        return left, right
    names = [*RELATION_NAMES, *(f"{name}_blocks" for name in RELATION_NAMES)]
    template = left if "relation" in left else right
    empty = xr.zeros_like(template[names])
    left, right = (data if "relation" in data else data.assign(empty) for data in (left, right))
    return left.reindex(relation=labels, fill_value=0), right.reindex(relation=labels, fill_value=0)


def _check_mergeable(first: Study, second: Study, *, allow_changed_files: bool) -> None:
    first_attributes, second_attributes = first.data.attrs, second.data.attrs
    if differing := _describe_differences(first_attributes, second_attributes, "merge"):
        raise StudyError("these studies cannot be merged; they differ in " + "; ".join(differing))
    if not (first.whole and second.whole):
        raise StudyError("only whole studies can be merged, not selected layers or heads")
    if _check_shares(first_attributes, second_attributes, allow_changed_files=allow_changed_files):
        return  # different shares have no document in common
    if first_attributes["corpus_hash"] == second_attributes["corpus_hash"]:
        raise StudyError("both studies are of the same texts (same content hash): merged, every text would count twice")
    first_sources, second_sources = _map_sources(first), _map_sources(second)
    repeated = sorted(set(first_sources) & set(second_sources))
    if repeated:
        name, other_name = first_sources[repeated[0]], second_sources[repeated[0]]
        others = f", and {len(repeated) - 1:,} more" if len(repeated) > 1 else ""
        raise StudyError(
            f"these studies cannot be merged: the texts of {name} here are those of {other_name} there (same content "
            f"hash){others}: they would count twice"
        )
    shared = sorted(_list_sources(first) & _list_sources(second))
    partial = _describe_partial(first_attributes) or _describe_partial(second_attributes)
    if shared and partial:
        raise StudyError(
            f"these studies cannot be merged: {shared[0]} is in both, one of them {partial}, and it is not known "
            "which of its texts are in both: merge studies of whole files, or shares of one corpus"
        )


def _describe_differences(first: Mapping[str, Any], second: Mapping[str, Any], use: Use) -> list[str]:
    return [
        f"{name}: {get_value(first, name)} here, {get_value(second, name)} there"
        for name in list_matching(use)
        if get_value(first, name) != get_value(second, name)
    ]


def _describe_partial(attributes: Mapping[str, Any]) -> str:
    """Return why a study may cover only a part of its files; empty if it covers them completely."""
    if not attributes.get("complete", 1):
        return "is incomplete"
    if attributes.get("limit", "none") != "none":
        return f"was made with --limit {attributes['limit']}"
    return f"holds share {attributes['share']}" if attributes.get("share", WHOLE) != WHOLE else ""


def _check_shares(first: Mapping[str, Any], second: Mapping[str, Any], *, allow_changed_files: bool) -> bool:
    """Return whether both studies are shares of one corpus.

    Raise a StudyError for shares of different corpora, or of one corpus that was split in different ways: some texts
    would be in both, others in none.
    """
    first_shares, second_shares = (parse_shares(str(attributes.get("share", WHOLE))) for attributes in (first, second))
    if not first_shares or not second_shares:
        return False
    differing = _describe_differences(first, second, "join shares")
    if first_shares[0][1] != second_shares[0][1]:
        differing.append(f"number of shares: {first_shares[0][1]} here, {second_shares[0][1]} there")
    if differing:
        raise StudyError(f"these shares are not of the same corpus cut in the same way: {'; '.join(differing)}")
    if first.get("corpus_version") != second.get("corpus_version") and not allow_changed_files:
        raise StudyError(
            "the files have other sizes or times in one of these shares. If they were copied, or a broken document was "
            "repaired in between, merge with --allow-changed-files; otherwise count the older shares again"
        )
    repeated = sorted(set(first_shares) & set(second_shares))
    if repeated:
        raise StudyError(f"share {format_share(repeated[0])} is in both")
    return True


def _map_sources(study: Study) -> dict[str, str]:
    """Return the names of the sources that contain documents, by content hash; empty for studies of old versions."""
    data = study.data
    if "source_hash" not in data:
        return {}
    rows = zip(data["source"].values, data["source_hash"].values, data["source_documents"].values, strict=True)
    return {str(content): str(name) for name, content, documents in rows if documents}


def _list_sources(study: Study) -> set[str]:
    """Return the names of the sources that contain documents; several may have the same content."""
    if "source_hash" not in study.data:
        return set()
    rows = zip(study.data["source"].values, study.data["source_documents"].values, strict=True)
    return {str(name) for name, documents in rows if documents}


def _has_shares(first: Study, second: Study) -> bool:
    return all(parse_shares(str(study.data.attrs.get("share", WHOLE))) for study in (first, second))


def _assign_sources(data: xr.Dataset, first: Study, second: Study, *, add_up: bool) -> xr.Dataset:
    """Return the dataset with the sources of both studies; with `add_up`, sources of the same name are added."""
    if not all("source_hash" in study.data for study in (first, second)):
        return data
    joined = {name: np.concatenate([first.data[name].values, second.data[name].values]) for name in SOURCES}
    if add_up:
        totals: dict[str, tuple[int, int]] = {}
        for name, documents, content in zip(*(joined[name].tolist() for name in SOURCES), strict=True):
            sums_before = totals.get(name, (0, 0))
            totals[name] = (sums_before[0] + documents, (sums_before[1] + int(content, 16)) % HASH_MODULUS)
        joined = {
            "source": np.array(list(totals), dtype=object),
            "source_documents": np.array([documents for documents, _ in totals.values()], dtype=np.int64),
            "source_hash": np.array([f"{content:032x}" for _, content in totals.values()], dtype=object),
        }
    return data.assign({name: ("source", joined[name]) for name in SOURCES[1:]}).assign_coords(source=joined["source"])


def _map_token_ids(study: Study) -> dict[str, int]:
    """Return the ids of the tokens in a study by their names, in the order of ids."""
    data = study.data
    return dict(zip(data["token"].values.tolist(), data["token_id"].values.tolist(), strict=True))


def _merge_attributes(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    skipped = dict(first["documents_skipped"])
    for reason, count in second["documents_skipped"].items():
        skipped[reason] = skipped.get(reason, 0) + count
    merged = dict(first)
    if "timing" in first and "timing" in second:  # absent in studies of old versions
        timings = [*first["timing"].items(), *second["timing"].items()]
        merged["timing"] = {
            name: round(sum(seconds for stage, seconds in timings if stage == name), 3) for name, _ in timings
        }
    shares = [*parse_shares(first.get("share", WHOLE)), *parse_shares(second.get("share", WHOLE))]
    is_same_corpus = bool(shares) and first["corpus"] == second["corpus"]
    merged.update(
        corpus=first["corpus"] if is_same_corpus else f"{first['corpus']} + {second['corpus']}",
        share=format_shares(shares),
        corpus_hash=f"{(int(first['corpus_hash'], 16) + int(second['corpus_hash'], 16)) % HASH_MODULUS:032x}",
        documents_read=first["documents_read"] + second["documents_read"],
        documents_skipped=skipped,
        duration_seconds=first["duration_seconds"] + second["duration_seconds"],
        runs=first.get("runs", 1) + second.get("runs", 1),
        complete=min(first["complete"], second["complete"]),
        skip_broken=max(first.get("skip_broken", 0), second.get("skip_broken", 0)),
        stopped_by="; ".join(reason for reason in (first["stopped_by"], second["stopped_by"]) if reason),
        command=f"{first['command']} + {second['command']}",
    )
    return {
        name: json.dumps(value, ensure_ascii=False) if name in JSON_ATTRIBUTES else value
        for name, value in merged.items()
    }
