// What changed between two texts, word by word (Myers, An O(ND) difference algorithm, 1986).

const MAX_TOKENS = 6000; // beyond, texts are compared line by line
const MAX_EDITS = 1000;  // beyond, texts are too different for marks to help

/** Parts of both texts: {a: [[kind, text]], b: [[kind, text]]} with kinds same, gone, new; null if too different. */
function difference(before, after) {
  let a = words(before), b = words(after);
  if (a.length + b.length > 2 * MAX_TOKENS) { a = lines(before); b = lines(after); }
  const edits = shortestEdit(a, b);
  if (!edits) return null;
  return {a: runs(edits.filter((e) => e[0] !== 'new')), b: runs(edits.filter((e) => e[0] !== 'gone'))};
}

function words(text) { return text.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) || []; }
function lines(text) { return text.match(/[^\n]*\n|[^\n]+/g) || []; }

function shortestEdit(a, b) {
  let start = 0, endA = a.length, endB = b.length;
  while (start < endA && start < endB && a[start] === b[start]) start++;
  while (endA > start && endB > start && a[endA - 1] === b[endB - 1]) { endA--; endB--; }
  const middle = myers(a.slice(start, endA), b.slice(start, endB));
  if (!middle) return null;
  const same = (token) => ['same', token];
  return [...a.slice(0, start).map(same), ...middle, ...a.slice(endA).map(same)];
}

function myers(a, b) {
  const limit = Math.min(a.length + b.length, MAX_EDITS), trace = [];
  let v = new Map([[1, 0]]);
  for (let d = 0; d <= limit; d++) {
    trace.push(v);
    const next = new Map();
    for (let k = -d; k <= d; k += 2) {
      let x = goesDown(v, k, d) ? v.get(k + 1) : v.get(k - 1) + 1;
      let y = x - k;
      while (x < a.length && y < b.length && a[x] === b[y]) { x++; y++; }
      next.set(k, x);
      if (x >= a.length && y >= b.length) return walkBack(trace, a, b);
    }
    v = next;
  }
  return null;
}

function goesDown(v, k, d) { return k === -d || (k !== d && (v.get(k - 1) ?? -1) < (v.get(k + 1) ?? -1)); }

function walkBack(trace, a, b) {
  const edits = [];
  let x = a.length, y = b.length;
  for (let d = trace.length - 1; d >= 0; d--) {
    const v = trace[d], k = x - y, before = goesDown(v, k, d) ? k + 1 : k - 1;
    const fromX = v.get(before) ?? 0, fromY = fromX - before;
    while (x > fromX && y > fromY && x > 0 && y > 0) { edits.push(['same', a[x - 1]]); x--; y--; }
    if (d === 0) break;
    if (x === fromX) { edits.push(['new', b[y - 1]]); y--; } else { edits.push(['gone', a[x - 1]]); x--; }
  }
  return edits.reverse();
}

/** Neighbours of one kind as one part; single blanks between two marks are marked too, so that marks hold together. */
function runs(edits) {
  const parts = [];
  edits.forEach(([kind, token], i) => {
    const bridges = kind === 'same' && /^[ ]$/.test(token) && i && i + 1 < edits.length &&
      edits[i - 1][0] !== 'same' && edits[i + 1][0] === edits[i - 1][0];
    const shown = bridges ? edits[i - 1][0] : kind;
    if (parts.length && parts[parts.length - 1][0] === shown) parts[parts.length - 1][1] += token;
    else parts.push([shown, token]);
  });
  return parts;
}
