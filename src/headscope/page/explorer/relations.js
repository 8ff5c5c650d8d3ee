// -- how the text itself relates two tokens, or words: a high pair that it does not explain is noise --------------------
// Python's counterpart is Reading.pairs(explain=True).
const relations = (() => {
  const NAMES = ["equal", "sentence", "neighbours"];
  const STATES = ["all", "explained", "noise"];
  const HIGH = { all: "high pairs, noise as grey dots", explained: "high pairs that the text explains", noise: "high pairs that are noise, as grey dots" };
  const FULL = 1, DOT = 2; // how a high pair is shown in the map
  let about = null;
  let named = []; // from bits, one a relation, to words
  let known = 0;

  function start(data) {
    about = data;
    NAMES.forEach((name, k) => { if (data.relations.includes(name)) known |= 1 << k; });
    named = Array.from({ length: 1 << NAMES.length }, (_, bits) => NAMES.filter((_name, k) => bits & known & (1 << k)).join(" + "));
  }

  // Of words, any of their tokens.
  function of(one, other) {
    const { kind, sentence } = about;
    let bits = 0;
    for (const i of one.members) {
      for (const j of other.members) bits |= (kind[i] === kind[j] ? 1 : 0) | (sentence[i] === sentence[j] ? 2 : 0) | (Math.abs(i - j) === 1 ? 4 : 0);
    }
    return named[bits];
  }

  // Where nothing could be explained, as in images, nothing is noise.
  const noise = (relation) => known > 0 && relation === "";
  const words = (relation) => relation || "noise";
  const states = () => (known ? STATES : ["all"]);
  const shown = (relation) => view.now.pairs === "all" || (view.now.pairs === "noise") === noise(relation);
  const adjective = () => (view.now.pairs === "all" ? "" : `${view.now.pairs} `);

  // Of a symmetric matrix of codes, how each element is shown among the high pairs; 0 not at all.
  function marks(codes, on, limit) {
    const size = on.units.length;
    const made = new Uint8Array(size * size);
    for (let a = 0; a < size; a++) {
      for (let b = a + 1; b < size; b++) {
        if (codes[a * size + b] <= limit) continue;
        const relation = of(on.units[a], on.units[b]);
        if (shown(relation)) made[a * size + b] = made[b * size + a] = noise(relation) ? DOT : FULL;
      }
    }
    return made;
  }

  const high = () => (known ? HIGH[view.now.pairs] : "high pairs only");

  // What is said over the table: how many pairs are of either kind, and how to tell them in the text.
  function tell(pairs) {
    const count = pairs.filter((pair) => noise(pair.relation)).length;
    const title = `${base.count(pairs.length)} pair${pairs.length === 1 ? "" : "s"} in ${view.name()}`;
    document.getElementById("pairs-title").textContent = known && pairs.length ? `${title}, ${base.count(pairs.length - count)} explained, ${base.count(count)} noise` : title;
    const box = document.getElementById("pairs-note");
    if (!box) return;
    box.textContent = {
      all: "Noise, dashed and grey, is what the text does not explain.",
      explained: `Only the ${base.count(pairs.length - count)} explained are listed, drawn and saved.`,
      noise: `Only the ${base.count(count)} of noise are listed, drawn and saved.`,
    }[view.now.pairs];
  }

  return { start, of, noise, words, states, shown, adjective, marks, high, tell, FULL, DOT };
})();
