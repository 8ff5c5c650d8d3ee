"""Studies made apart, of other texts of one corpus or on other days, as one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from headscope.errors import StudyError
from headscope.run.share import WHOLE, format_share, format_shares, parse_shares
from headscope.run.state import HASH_MODULUS
from headscope.studies.labels import derived
from headscope.studies.result import JSON_ATTRIBUTES, Study
from headscope.tally.quantities import BY_NAME

SETTINGS = (
    "model",
    "weight_hash",
    "stack",
    "tokenizer",
    "length",
    "windows",
    "sentences",
    "min_tokens",
    "theta",
    "tau",
    "sample",
    "maps",
    "dtype",
    "layers",
    "heads",
)
"""What two studies must share to be added up."""
SOURCES = ("source", "source_documents", "source_hash")
OF_SHARES = ("corpus", "chunk_size", "chunks", "field", "text_format", "encoding")
"""What two shares of a corpus must have in common besides."""


def merged(one: Study, other: Study, *, allow_changed_files: bool = False) -> Study:
    """Both together."""
    _check(one, other, allow_changed_files=allow_changed_files)
    ids = {**_token_ids(one), **_token_ids(other)}
    tokens = sorted(ids, key=lambda token: ids[token])
    left, right = (study.data.drop_vars(SOURCES, errors="ignore") for study in (one, other))
    left, right = (data.reindex(token=tokens, fill_value=0) for data in (left, right))
    names = [name for name in (*BY_NAME, "most_attended") if name in left]
    names += [f"{name}_blocks" for name in names if f"{name}_blocks" in left]
    sums = {name: left[name].variable + right[name].variable for name in names}
    for name, variable in sums.items():
        variable.attrs = dict(left[name].attrs)
    coordinates = left[[name for name in left.coords if name not in ("distance", "token_id")]]
    both = coordinates.assign(sums).assign_coords(
        token_id=("token", np.array([ids[token] for token in tokens], dtype=np.int64))
    )
    both = derived(_with_sources(both, one, other, add_up=_are_shares(one, other)))
    return Study(both.assign_attrs(_attributes(one.manifest, other.manifest)))


def _check(one: Study, other: Study, *, allow_changed_files: bool) -> None:
    mine, theirs = one.data.attrs, other.data.attrs
    differing = [
        f"{name}: {mine.get(name)} here, {theirs.get(name)} there"
        for name in SETTINGS
        if mine.get(name) != theirs.get(name)
    ]
    if differing:
        raise StudyError("these studies cannot be merged; they differ in " + "; ".join(differing))
    if not (one.whole and other.whole):
        raise StudyError("only whole studies can be merged, not selected layers or heads")
    if _check_shares(mine, theirs, allow_changed_files=allow_changed_files):  # they have no document in common
        return
    if mine["corpus_hash"] == theirs["corpus_hash"]:
        raise StudyError("both studies are of the same texts (same content hash): merged, every text would count twice")
    here, there = _sources(one), _sources(other)
    twice = sorted(set(here) & set(there))
    if twice:
        name, again = here[twice[0]], there[twice[0]]
        more = f", and {len(twice) - 1:,} more" if len(twice) > 1 else ""
        raise StudyError(
            f"these studies cannot be merged: the texts of {name} here are those of {again} there (same content "
            f"hash){more}: they would count twice"
        )
    shared = sorted(set(here.values()) & set(there.values()))
    partial = _describe_partial(mine) or _describe_partial(theirs)
    if shared and partial:
        raise StudyError(
            f"these studies cannot be merged: {shared[0]} is in both, one of them {partial}, and it cannot be told "
            "which of its texts are in both: merge studies of whole files, or shares of one corpus"
        )


def _describe_partial(about: Mapping[str, Any]) -> str:
    """Return in words why a study may hold only a part of its files; empty if it holds them whole."""
    if not about.get("complete", 1):
        return "is incomplete"
    if about.get("limit", "none") != "none":
        return f"was made with --limit {about['limit']}"
    return f"holds share {about['share']}" if about.get("share", WHOLE) != WHOLE else ""


def _check_shares(mine: Mapping[str, Any], theirs: Mapping[str, Any], *, allow_changed_files: bool) -> bool:
    """Return whether both are shares of one corpus.

    Refuse shares that are not parts of one corpus cut in one way: some texts would be in both, others in none.
    """
    here, there = (parse_shares(str(about.get("share", WHOLE))) for about in (mine, theirs))
    if not here or not there:
        return False
    differing = [
        f"{name}: {mine.get(name)} here, {theirs.get(name)} there"
        for name in OF_SHARES
        if mine.get(name) != theirs.get(name)
    ]
    if here[0][1] != there[0][1]:
        differing.append(f"number of shares: {here[0][1]} here, {there[0][1]} there")
    if differing:
        raise StudyError(f"these shares are not of the same corpus cut in the same way: {'; '.join(differing)}")
    if mine.get("corpus_version") != theirs.get("corpus_version") and not allow_changed_files:
        raise StudyError(
            "the files have other sizes or times in one of these shares. If they were copied, or a broken document was "
            "repaired in between, merge with --allow-changed-files; otherwise count the older shares again"
        )
    twice = sorted(set(here) & set(there))
    if twice:
        raise StudyError(f"share {format_share(twice[0])} is in both")
    return True


def _sources(study: Study) -> dict[str, str]:
    """Names of the sources of a study that gave documents, by the hash of these; studies of earlier versions have
    none."""
    data = study.data
    if "source_hash" not in data:
        return {}
    rows = zip(data["source"].values, data["source_hash"].values, data["source_documents"].values, strict=True)
    return {str(content): str(name) for name, content, documents in rows if documents}


def _are_shares(one: Study, other: Study) -> bool:
    return all(parse_shares(str(study.data.attrs.get("share", WHOLE))) for study in (one, other))


def _with_sources(data: xr.Dataset, one: Study, other: Study, *, add_up: bool) -> xr.Dataset:
    """Return the dataset with the sources of both studies; of the same name, if they are shares, their sum."""
    if not all("source_hash" in study.data for study in (one, other)):
        return data
    joined = {name: np.concatenate([one.data[name].values, other.data[name].values]) for name in SOURCES}
    if add_up:
        totals: dict[str, tuple[int, int]] = {}
        for name, documents, content in zip(*(joined[name].tolist() for name in SOURCES), strict=True):
            before = totals.get(name, (0, 0))
            totals[name] = (before[0] + documents, (before[1] + int(content, 16)) % HASH_MODULUS)
        joined = {
            "source": np.array(list(totals), dtype=object),
            "source_documents": np.array([documents for documents, _ in totals.values()], dtype=np.int64),
            "source_hash": np.array([f"{content:032x}" for _, content in totals.values()], dtype=object),
        }
    return data.assign({name: ("source", joined[name]) for name in SOURCES[1:]}).assign_coords(source=joined["source"])


def _token_ids(study: Study) -> dict[str, int]:
    """Tokens that were the most attended of some text, in the order of their ids."""
    data = study.data
    return dict(zip(data["token"].values.tolist(), data["token_id"].values.tolist(), strict=True))


def _attributes(mine: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    skipped = dict(mine["documents_skipped"])
    for reason, count in theirs["documents_skipped"].items():
        skipped[reason] = skipped.get(reason, 0) + count
    merged = dict(mine)
    if "timing" in mine and "timing" in theirs:  # studies of earlier versions have none
        spent = [*mine["timing"].items(), *theirs["timing"].items()]
        merged["timing"] = {name: round(sum(taken for each, taken in spent if each == name), 3) for name, _ in spent}
    shares = [*parse_shares(mine.get("share", WHOLE)), *parse_shares(theirs.get("share", WHOLE))]
    same = bool(shares) and mine["corpus"] == theirs["corpus"]
    merged.update(
        corpus=mine["corpus"] if same else f"{mine['corpus']} + {theirs['corpus']}",
        share=format_shares(shares),
        corpus_hash=f"{(int(mine['corpus_hash'], 16) + int(theirs['corpus_hash'], 16)) % HASH_MODULUS:032x}",
        documents_read=mine["documents_read"] + theirs["documents_read"],
        documents_skipped=skipped,
        duration_seconds=mine["duration_seconds"] + theirs["duration_seconds"],
        runs=mine.get("runs", 1) + theirs.get("runs", 1),
        complete=min(mine["complete"], theirs["complete"]),
        skip_broken=max(mine.get("skip_broken", 0), theirs.get("skip_broken", 0)),
        stopped_by="; ".join(reason for reason in (mine["stopped_by"], theirs["stopped_by"]) if reason),
        command=f"{mine['command']} + {theirs['command']}",
    )
    return {
        name: json.dumps(value, ensure_ascii=False) if name in JSON_ATTRIBUTES else value
        for name, value in merged.items()
    }
