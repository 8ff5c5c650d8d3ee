// -- what is shown: one state, kept in the address ----------------------------------------------------------------------
const view = (() => {
  const FLAGS = ["diagonal", "raw", "words", "hide", "segments"];
  const now = {};
  let defaults = {};
  let about = null;
  let listeners = [];
  let planned = false;

  function start(data) {
    about = data;
    const last = data.layers.length - 1;
    defaults = {
      layer: data.start ? data.start[0] : last, head: data.start ? data.start[1] : 0, theta: data.theta, tau: data.tau,
      token: -1, diagonal: false, raw: false, words: false, hide: false, segments: false, view: "values", kind: "similarity", pairs: "all", zoom: null,
    };
    Object.assign(now, defaults, parse(location.hash));
    settle();
    addEventListener("hashchange", () => change({ ...defaults, ...parse(location.hash) }));
  }

  const name = (layer = now.layer, head = now.head) => `L${about.layers[layer]}${head === about.sum ? "sum" : `H${about.heads[head]}`}`;

  function address() {
    const parts = [name()];
    for (const key of ["theta", "tau", "view", "kind", "pairs"]) if (now[key] !== defaults[key]) parts.push(`${key}=${now[key]}`);
    for (const key of FLAGS) if (now[key]) parts.push(key);
    if (now.token >= 0) parts.push(`token=${now.token}`);
    if (now.zoom) parts.push(`zoom=${now.zoom.join(".")}`);
    return `#${parts.join("&")}`;
  }

  // An address may come from anywhere: what does not fit is left out.
  function parse(hash) {
    const made = {};
    for (const part of hash.replace(/^#/, "").split("&")) {
      const [key, text] = part.split("=").filter(Boolean); // `theta=` says nothing, not 0
      const place = /^L(\d+)(?:H(\d+)|sum)$/.exec(key);
      if (place) {
        const layer = about.layers.indexOf(Number(place[1]));
        const head = place[2] === undefined ? about.sum : about.heads.indexOf(Number(place[2]));
        if (layer >= 0 && head >= 0) Object.assign(made, { layer, head });
      } else if (FLAGS.includes(key)) made[key] = true;
      else if ((key === "theta" || key === "tau") && Number(text) >= 0 && Number(text) < 1) made[key] = snap(Number(text));
      else if (key === "view" && ["values", "high", ...(about.attention ? ["lines", "regions"] : [])].includes(text)) made.view = text;
      else if (key === "kind" && ["similarity", ...(about.attention ? ["attention"] : [])].includes(text)) made.kind = text;
      else if (key === "pairs" && relations.states().includes(text)) made.pairs = text;
      else if (key === "token" && Number.isInteger(Number(text)) && Number(text) >= 0 && Number(text) < about.n) made.token = Number(text);
      else if (key === "zoom") {
        const numbers = (text || "").split(".").map(Number);
        if (numbers.length === 4 && numbers.every((k) => Number.isInteger(k) && k >= 0 && k <= about.n) && numbers[0] < numbers[1] && numbers[2] < numbers[3]) made.zoom = numbers;
      }
    }
    return made;
  }

  // A layer may lack heads that others have: the nearest before it is shown, or else its first.
  function settle() {
    const present = about.present[now.layer];
    if (present[now.head]) return;
    const before = present.lastIndexOf(true, now.head);
    now.head = before >= 0 ? before : present.indexOf(true);
  }

  const snap = (share) => Math.min(Math.round(share * about.thresholds), about.thresholds - 1) / about.thresholds;

  function change(patch) {
    // A part of a map is counted in units of the axis, which change with it.
    if (("words" in patch && patch.words !== now.words) || ("hide" in patch && patch.hide !== now.hide)) patch = { zoom: null, ...patch };
    Object.assign(now, patch);
    settle();
    if (planned) return;
    planned = true;
    requestAnimationFrame(() => {
      planned = false;
      for (const listener of listeners) listener(now);
      try { history.replaceState(null, "", address()); } catch { /* a frame without an address of its own */ }
    });
  }

  return { now, start, change, name, snap, listen: (listener) => { listeners = [...listeners, listener]; } };
})();
