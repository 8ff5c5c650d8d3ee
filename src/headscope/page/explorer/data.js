// -- the reading: codes in, the same pairs, lines, blocks and regions out as in Python ----------------------------------
// A similarity v = C/max(C) is kept as code = ⌈v·M⌉, and M is a multiple of D, so v > k/D exactly where code > k·M/D:
// thresholds are multiples of 1/D here, and comparisons are between whole numbers.
const reading = (() => {
  let about = null;
  const layers = new Map(); // layer index → its arrays, once unpacked
  const waiting = new Map();

  function start(data) {
    about = data;
    about.n = data.tokens.length;
    about.upper = (about.n * (about.n - 1)) / 2;
    about.step = data.steps / data.thresholds;
    about.matrices = data.heads.length + 1; // the last is the sum over the heads
    about.sum = data.heads.length;
    const words = [];
    data.word.forEach((word, i) => (words[word] ||= []).push(i));
    about.words = words;
    return about;
  }

  async function unpack(index) {
    if (layers.has(index)) return layers.get(index);
    if (!waiting.has(index)) waiting.set(index, inflate(index));
    return waiting.get(index);
  }

  async function inflate(index) {
    const holder = document.getElementById(`layer-${index}`);
    const text = atob(holder.textContent.trim());
    const packed = new Uint8Array(text.length);
    for (let k = 0; k < text.length; k++) packed[k] = text.charCodeAt(k);
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    const bytes = await new Response(stream).arrayBuffer();
    holder.remove(); // once is enough in memory
    const { n, upper, matrices, heads, bytes: width, attention } = about;
    let at = 0;
    const numbers = (length) => {
      const raw = new Uint8Array(bytes, at, length * width);
      at += length * width;
      if (width === 1) return new Int8Array(raw.buffer, raw.byteOffset, length);
      const made = new Int16Array(length);
      for (let k = 0; k < length; k++) made[k] = (raw[k] << 8) | raw[k + length];
      return made;
    };
    const similarity = numbers(matrices * upper);
    const maps = attention ? new Uint8Array(bytes, at, heads.length * n * n) : null;
    if (attention) at += heads.length * n * n;
    const diagonal = new Float32Array(bytes.slice(at, at + matrices * n * 4));
    at += matrices * n * 4;
    const columns = attention ? numbers(matrices * n) : null;
    const made = { similarity, maps, diagonal, columns };
    layers.set(index, made);
    return made;
  }

  const held = (layer) => layers.get(layer);
  const place = (i, j) => i * about.n - (i * (i + 1)) / 2 + (j - i - 1); // of (i, j), i < j, above the diagonal
  const above = (share) => Math.round(share * about.thresholds) * about.step;

  function code(layer, head, i, j) {
    const { similarity } = layers.get(layer);
    return similarity[head * about.upper + (i < j ? place(i, j) : place(j, i))];
  }

  // The middle of what a code may stand for; the largest and zero are what they are.
  const value = (c) => (c === about.steps ? 1 : c === 0 ? 0 : (c - 0.5) / about.steps);

  // What the axes of a map show: tokens, or words; perhaps without the special ones.
  const axes = new Map();
  function axis(words, hideSpecial) {
    const key = `${words}${hideSpecial}`;
    if (!axes.has(key)) {
      const units = words
        ? about.words.map((members) => ({ members, first: members[0], label: about.word_labels[about.word[members[0]]], special: about.special[members[0]] }))
        : about.tokens.map((label, i) => ({ members: [i], first: i, label, special: about.special[i] }));
      const shown = units.filter((unit) => !(hideSpecial && unit.special));
      const of = new Int32Array(about.n).fill(-1); // token → its unit
      shown.forEach((unit, k) => unit.members.forEach((i) => { of[i] = k; }));
      axes.set(key, { units: shown, of, words });
    }
    return axes.get(key);
  }

  // Codes between the units of an axis: of words the highest of their tokens'. Symmetric; the diagonal is 0.
  function codes(layer, head, on) {
    const size = on.units.length;
    const made = new Int16Array(size * size);
    if (!on.words) {
      const { similarity } = layers.get(layer);
      const from = head * about.upper;
      for (let a = 0; a < size; a++) {
        const i = on.units[a].first;
        for (let b = a + 1; b < size; b++) {
          const c = similarity[from + place(i, on.units[b].first)];
          made[a * size + b] = c;
          made[b * size + a] = c;
        }
      }
      return made;
    }
    for (let a = 0; a < size; a++) {
      for (let b = a + 1; b < size; b++) {
        let highest = -32768;
        for (const i of on.units[a].members) for (const j of on.units[b].members) highest = Math.max(highest, code(layer, head, i, j));
        made[a * size + b] = highest;
        made[b * size + a] = highest;
      }
    }
    return made;
  }

  function diagonal(layer, head, unit) {
    const { diagonal: held } = layers.get(layer);
    let highest = -Infinity;
    for (const i of unit.members) highest = Math.max(highest, held[head * about.n + i]);
    return highest;
  }

  // Attention between units: to a word the sum over its tokens, from a word the mean over its tokens.
  function attention(layer, head, on) {
    const { maps } = layers.get(layer);
    const { n, levels } = about;
    const square = Float32Array.from({ length: levels + 1 }, (_, c) => (c / levels) ** 2);
    const whole = new Float32Array(n * n);
    const heads = head === about.sum ? about.heads.map((_, k) => k) : [head];
    for (const each of heads) for (let k = 0; k < n * n; k++) whole[k] += square[maps[each * n * n + k]];
    const size = on.units.length;
    if (size === n) return whole;
    const made = new Float32Array(size * size);
    on.units.forEach((from, a) => on.units.forEach((to, b) => {
      let total = 0;
      for (const i of from.members) for (const j of to.members) total += whole[i * n + j];
      made[a * size + b] = total / from.members.length;
    }));
    return made;
  }

  function pairs(layer, head, theta, on = axis(false, false)) {
    const limit = above(theta);
    const made = [];
    const size = on.units.length;
    const held = codes(layer, head, on);
    const scale = about.scales[layer][head];
    for (let a = 0; a < size; a++) {
      for (let b = a + 1; b < size; b++) {
        const c = held[a * size + b];
        if (c <= limit) continue;
        const one = on.units[a], other = on.units[b];
        made.push({ token_i: one.label, token_j: other.label, index_i: one.first, index_j: other.first, value: value(c) * scale, relative: value(c), relation: relations.of(one, other), code: c, a, b });
      }
    }
    return made;
  }

  function lines(layer, head, tau) {
    const { columns } = layers.get(layer);
    if (!columns) return [];
    const limit = above(tau);
    const made = [];
    for (let j = 0; j < about.n; j++) {
      const c = columns[head * about.n + j];
      if (c > limit) made.push({ index: j, token: about.tokens[j], received: value(c) });
    }
    return made;
  }

  function blocks(layer, head, tau) {
    const edges = [0, ...lines(layer, head, tau).map((line) => line.index + 1)];
    if (edges[edges.length - 1] !== about.n) edges.push(about.n);
    return edges.slice(1).map((stop, k) => ({ start: edges[k], stop }));
  }

  // The mean of C over block a × block b, over max(C); null inside a block of one token.
  function regions(layer, head, tau) {
    const cut = blocks(layer, head, tau);
    const of = new Int32Array(about.n);
    cut.forEach((block, k) => of.fill(k, block.start, block.stop));
    const size = cut.length;
    const sums = new Float64Array(size * size);
    const { similarity } = layers.get(layer);
    let at = head * about.upper;
    for (let i = 0; i < about.n; i++) for (let j = i + 1; j < about.n; j++, at++) sums[of[i] * size + of[j]] += value(similarity[at]);
    return cut.map((one, a) => cut.map((other, b) => {
      const long = one.stop - one.start;
      if (a === b) return long > 1 ? sums[a * size + a] / ((long * (long - 1)) / 2) : null;
      return sums[Math.min(a, b) * size + Math.max(a, b)] / (long * (other.stop - other.start));
    }));
  }

  // The token value that the most high pairs include (a pair of equal tokens includes it once); ties: met first.
  function dominant(layer, head, theta) {
    const limit = above(theta);
    const { similarity } = layers.get(layer);
    const { kind, kinds } = about; // values are numbered as they are first met
    const counts = new Int32Array(kinds);
    let total = 0;
    let at = head * about.upper;
    for (let i = 0; i < about.n; i++) {
      for (let j = i + 1; j < about.n; j++, at++) {
        if (similarity[at] <= limit) continue;
        total++;
        counts[kind[i]]++;
        if (kind[i] !== kind[j]) counts[kind[j]]++;
      }
    }
    if (!total) return null;
    let best = 0;
    for (let k = 1; k < kinds; k++) if (counts[k] > counts[best]) best = k;
    return { kind: best, token: about.tokens[kind.indexOf(best)], count: counts[best], pairs: total };
  }

  return { start, unpack, held, axis, codes, code, value, diagonal, attention, pairs, lines, blocks, regions, dominant, above };
})();
