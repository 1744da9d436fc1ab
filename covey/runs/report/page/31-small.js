// Small pictures inside rows: sparklines, dots of a group's rewards, bars of advantages, stacked bars.

/** A curve without axes. */
function sparkline(values, {width = 96, height = 22, color = 'var(--c0)', low, high, stretch = false} = {}) {
  const kept = values.filter((v) => v !== null && Number.isFinite(v));
  const from = low ?? Math.min(...kept), to = high ?? Math.max(...kept), span = to - from || 1;
  const xs = (i) => (values.length < 2 ? width / 2 : 1.5 + (i / (values.length - 1)) * (width - 3));
  const ys = (v) => height - 2 - ((v - from) / span) * (height - 4);
  let d = '', open = false;
  values.forEach((v, i) => {
    if (v === null || !Number.isFinite(v)) { open = false; return; }
    d += `${open ? 'L' : 'M'}${xs(i).toFixed(1)} ${ys(v).toFixed(1)}`;
    open = true;
  });
  const end = kept.length ? s('circle', {cx: xs(values.length - 1), cy: ys(kept[kept.length - 1]), r: 1.8}) : null;
  const size = stretch ? {viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: 'none', height} : {width, height};
  return s('svg.sparkline', {...size, 'aria-hidden': 'true', style: {'--c': color}}, s('path', {d}), end && values.length > 1 && !stretch ? end : null);
}

/** Thin a list of values to about as many as a small picture has pixels. */
function thinned(values, wanted = 60) {
  if (values.length <= wanted) return values;
  return Array.from({length: wanted}, (_, i) =>
    meanOf(values.slice(Math.floor((i * values.length) / wanted), Math.floor(((i + 1) * values.length) / wanted))));
}

/** The rewards of one group as dots on a line from low to high; those of one value stand on each other. */
function dots(values, advantages, low, high, {width = 120, height = 24} = {}) {
  const span = high - low || 1, stacks = new Map(), marks = [];
  values.forEach((value, i) => {
    if (Number.isNaN(value)) return;
    const x = Math.round(5 + ((value - low) / span) * (width - 10)), place = Math.round(x / 4);
    const level = stacks.get(place) || 0;
    stacks.set(place, level + 1);
    const kind = advantages[i] > 1e-6 ? 'up' : advantages[i] < -1e-6 ? 'down' : 'flat';
    marks.push(s('circle.' + kind, {cx: x, cy: Math.max(3, height - 4 - level * 4.5), r: 2.1}));
  });
  const base = s('line', {x1: 2, x2: width - 2, y1: height - 0.5, y2: height - 0.5});
  return s('svg.dots', {width, height, viewBox: `0 0 ${width} ${height}`, 'aria-hidden': 'true'}, base, marks);
}

/** A bar to the right for a positive advantage, to the left for a negative one. */
function advantageBar(value, width = 64) {
  const middle = width / 2, length = Math.min(1, Math.abs(value) / ADVANTAGE_LIMIT) * (middle - 1);
  return s('svg.advantage', {width, height: 10, 'aria-hidden': 'true'},
    s('line', {x1: middle, x2: middle, y1: 0, y2: 10}),
    s('rect.' + (value > 0 ? 'up' : 'down'), {x: value > 0 ? middle : middle - length, y: 2, width: length, height: 6}));
}

/** A share as a filled part of a thin line. */
function meter(share, width = 56) {
  const part = Math.max(0, Math.min(1, share || 0)) * width;
  return s('svg.meter', {width, height: 8, 'aria-hidden': 'true'}, s('rect.rest', {width, height: 3, y: 3}),
    s('rect', {width: part, height: 3, y: 3}));
}

/** Parts of a whole side by side: [{name, value, color}]. */
function stacked(parts) {
  const total = parts.reduce((sum, p) => sum + p.value, 0) || 1;
  return h('div.stacked', {}, parts.map((p) =>
    h('span', {style: {'flex-grow': p.value / total, '--c': p.color}, title: visible(p.name)})));
}

/** How the rewards of all completions are spread, step by step: dark where many are. */
function heatmap(table, {height = 148} = {}) {
  const canvas = h('canvas.heatmap', {role: 'img', 'aria-label': 'distribution of rewards over the steps'});
  const labels = h('div.heatmap-labels'), zero = h('div.heatmap-zero', {hidden: true});
  const box = h('div.heatmap-box', {style: {height: height + 'px'}}, canvas, labels, zero);
  const node = h('div', {}, box, heatmapScale());
  const draw = perFrame(() => node.isConnected && drawHeatmap(canvas, labels, zero, table, Math.floor(box.clientWidth - MARGIN.left - MARGIN.right), height));
  new ResizeObserver(draw).observe(node);
  listen('theme', node, draw);
  listen('data', node, draw);
  return node;
}

/** What the shades mean. */
function heatmapScale() {
  return h('div.heatmap-scale', {}, 'share of a step’s completions', [0.02, 0.1, 0.3, 1].map((share) =>
    [h('i', {style: {opacity: shadeOf(share)}}), percent(share)]));
}

function shadeOf(share) { return Math.min(1, 0.08 + 0.92 * Math.sqrt(share)); }

function drawHeatmap(canvas, labels, zero, table, width, height) {
  if (width < 20 || !table.rows) return;
  const {step, total} = table.columns, bins = Math.max(6, Math.floor(height / 6));
  const [low, high] = extent(sampled(total, 20000).filter((v) => !Number.isNaN(v))), span = high - low || 1;
  const first = step[0], last = Math.max(first + 1, step[table.rows - 1]);
  const columns = Math.min(Math.floor(width / 3), last - first + 1);
  const counts = new Float32Array(columns * bins), perColumn = new Float32Array(columns);
  for (let i = 0; i < table.rows; i++) {
    if (Number.isNaN(total[i])) continue;
    const x = Math.min(columns - 1, Math.floor(((step[i] - first) / (last - first + 1)) * columns + 1e-6));
    const y = Math.min(bins - 1, Math.max(0, Math.floor(((total[i] - low) / span) * bins)));
    counts[x * bins + y] += 1;
    perColumn[x] += 1;
  }
  paintHeatmap(canvas, counts, perColumn, columns, bins, width, height);
  const places = low < high ? [...new Set([low, ...ticks(low, high, 3), high])].sort((a, b) => a - b) : [low], top = (v) => 100 * (1 - (v - low) / span);
  const apart = places.filter((v, i) => v === low || v === high || (top(v) > 12 && top(v) < 88 && i));
  fill(labels, apart.map((v) => h('span', {style: {top: top(v) + '%'}}, number(v))));
  zero.hidden = !(low < 0 && high > 0);
  zero.style.setProperty('top', top(0) + '%');
}

function paintHeatmap(canvas, counts, perColumn, columns, bins, width, height) {
  const ratio = devicePixelRatio || 1, brush = canvas.getContext('2d');
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  canvas.style.setProperty('width', width + 'px');
  canvas.style.setProperty('height', height + 'px');
  brush.scale(ratio, ratio);
  brush.fillStyle = getComputedStyle(canvas).getPropertyValue('--heat');
  for (let x = 0; x < columns; x++) {
    for (let y = 0; y < bins; y++) {
      const share = counts[x * bins + y] / (perColumn[x] || 1);
      if (!share) continue;
      brush.globalAlpha = shadeOf(share);
      const left = Math.floor((x / columns) * width), right = Math.floor(((x + 1) / columns) * width);
      const top = Math.floor(((bins - 1 - y) / bins) * height), bottom = Math.floor(((bins - y) / bins) * height);
      brush.fillRect(left, top, Math.max(1, right - left), Math.max(1, bottom - top - 1));
    }
  }
}

function sampled(values, wanted) {
  const stride = Math.max(1, Math.floor(values.length / wanted)), found = [];
  for (let i = 0; i < values.length; i += stride) found.push(values[i]);
  return found;
}
