// Curves over the steps, with intervals. All charts of the page share one cursor.

const MARGIN = {left: 48, right: 10, top: 8, bottom: 20};

const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    entry.target.chart.onScreen = entry.isIntersecting;
    if (entry.isIntersecting) entry.target.chart.draw();
  }
}, {rootMargin: '200px'});

const resized = new ResizeObserver((entries) => {
  for (const entry of entries) entry.target.chart.draw();
});

/**
 * A chart. `series()` gives what to draw: [{name, color, xs, ys, errors?, points?, faint?}], with points of evaluations
 * as [{x, y, low, high}]. Options: title, note, format, height, marks() for vertical lines, spans() for shaded steps.
 */
class Chart {
  constructor(options) {
    Object.assign(this, {height: 150, format: number, marks: () => [], spans: () => [], note: ''}, options);
    this.readings = h('div.readings');
    this.plot = h('div.plot', {
      tabindex: 0, role: 'img',
      on: {pointermove: (e) => this.point(e), pointerleave: () => setCursor(null), keydown: (e) => this.key(e),
        blur: () => setCursor(null)},
    });
    this.node = h('figure.chart', {}, h('figcaption.chart-head', {}, this.heading(), this.exporter(), this.readings), this.plot);
    this.plot.style.setProperty('height', this.height + 'px');
    this.plot.chart = this;
    this.onScreen = false;
    this.draw = perFrame(() => this.render());
    this.moveCursor = perFrame((x) => this.showCursor(x));
    seen.observe(this.plot);
    resized.observe(this.plot);
    listen('cursor', this.node, (x) => this.onScreen && this.moveCursor(x));
    for (const change of ['curves', 'theme', 'data']) listen(change, this.node, () => this.onScreen && this.draw());
  }

  heading() {
    return h('span.chart-title', {}, this.title, this.note && h('small', {}, this.note));
  }

  /** The button that saves the points. */
  exporter() {
    return h('button.link.chart-export', {type: 'button', title: 'the points as a table', 'aria-label': `save ${visible(this.title)} as CSV`,
      on: {click: () => saveText(`${this.title}.csv`, this.csv())}}, 'CSV');
  }

  render() {
    if (!this.plot.isConnected) { seen.unobserve(this.plot); resized.unobserve(this.plot); return; }
    this.width = this.plot.clientWidth;
    if (!this.width) return;
    this.curves = this.series().map((curve) => this.prepared(curve)).filter((c) => c.xs.length || (c.points || []).length);
    this.scale();
    const empty = !this.curves.some((c) => c.ys.some((y) => y !== null) || (c.points || []).length);
    const drawing = s('svg', {width: this.width, height: this.height, 'aria-hidden': 'true'});
    append(drawing, empty ? [] : [this.grid(), this.shading(), this.curves.map((c) => this.curve(c)), this.pointer()]);
    fill(this.plot, drawing, empty && h('div.plot-empty', {}, 'no values yet'));
    this.plot.setAttribute('aria-label', this.description());
    this.read(null);
  }

  /** A series with its x values by the chosen axis and its smoothed form. */
  prepared(curve) {
    const sigma = curve.exact ? 0 : sigmaOf(app.smooth, curve.ys.length);
    const {values, halves} = smoothed(curve.ys, curve.errors, sigma);
    return {...curve, smooth: values, band: halves, sigma};
  }

  scale() {
    const xs = this.curves.flatMap((c) => [c.xs[0], c.xs[c.xs.length - 1], ...(c.points || []).map((p) => p.x)]);
    const finite = xs.filter((x) => x !== undefined && x !== null);
    const [x0, x1] = finite.length ? [Math.min(...finite), Math.max(...finite)] : [0, 1];
    const floor = this.curves.every((c) => c.ys.every((y) => y === null || y >= 0)) ? 0 : -Infinity;
    const ys = this.curves.flatMap((c) => [
      ...(c.sigma < 0.3 || c.faint === false ? c.smooth : c.ys), ...bandEnds(c, floor),
      ...(c.points || []).flatMap((p) => [p.y, p.low ?? p.y, p.high ?? p.y])]);
    let [low, high] = extent(ys);
    this.isLog = app.logarithmic && low > 0;
    if (this.isLog) [low, high] = [Math.log10(low), Math.log10(high)];
    else [low, high] = roomy(low, high, this.format);
    const room = 0.06 * (high - low);
    const [left, right] = x1 > x0 ? [x0, x1] : [x0 - 0.5, x0 + 0.5]; // one point stands in the middle
    this.domain = {x0: left, x1: right, low: low === 0 ? 0 : low - room, high: high + room};
  }

  atX(x) {
    const {x0, x1} = this.domain;
    return MARGIN.left + ((x - x0) / (x1 - x0)) * (this.width - MARGIN.left - MARGIN.right);
  }

  atY(y) {
    const {low, high} = this.domain, value = this.isLog ? Math.log10(Math.max(y, 1e-300)) : y;
    const share = Math.min(1.05, Math.max(low === 0 ? 0 : -0.05, (value - low) / (high - low)));
    return this.height - MARGIN.bottom - share * (this.height - MARGIN.top - MARGIN.bottom);
  }

  grid() {
    const {low, high, x0, x1} = this.domain;
    const marks = ticks(low, high, this.height > 200 ? 5 : this.height > 110 ? 3 : 2), gap = marks.length > 1 ? marks[1] - marks[0] : high - low;
    const lines = marks.map((v) => {
      const y = Math.round(this.atY(this.isLog ? 10 ** v : v)) + 0.5;
      const word = this.isLog ? this.format(10 ** v) : tickLabel(v, gap, this.format);
      return [s('line.grid', {x1: MARGIN.left, x2: this.width - MARGIN.right, y1: y, y2: y}),
        s('text.tick', {x: MARGIN.left - 8, y: y + 4, 'text-anchor': 'end'}, word)];
    });
    const places = ticks(x0, x1, Math.max(2, this.width / 90)), step = places.length > 1 ? places[1] - places[0] : 1;
    const labels = places.filter((x) => app.x !== 'step' || Number.isInteger(x)).map((x) => {
      const at = this.atX(x), end = at > this.width - 30;
      return s('text.tick', {x: end ? this.width - MARGIN.right : at, y: this.height - 4, 'text-anchor': end ? 'end' : 'middle'},
        tickLabel(x, step, number));
    });
    const unit = {step: 'step', hours: 'hours', tokens: 'M tokens'}[app.x];
    return [lines, labels, s('text.tick', {x: MARGIN.left - 8, y: this.height - 4, 'text-anchor': 'end'}, unit)];
  }

  shading() {
    const bottom = this.height - MARGIN.bottom;
    const spans = this.spans().map(([from, to]) => {
      const left = this.atX(Math.max(from, this.domain.x0)), right = this.atX(Math.min(to, this.domain.x1));
      return s('rect.span', {x: left, y: MARGIN.top, width: Math.max(2, right - left), height: bottom - MARGIN.top});
    });
    const marks = this.marks().map((x) => s('line.mark', {x1: this.atX(x), x2: this.atX(x), y1: MARGIN.top, y2: bottom}));
    return [spans, marks];
  }

  curve(c) {
    const parts = [];
    const color = {style: {'--c': c.color}};
    if (c.band) parts.push(s('path.band', {d: this.bandPath(c), ...color}));
    if (c.sigma >= 0.3 && c.faint !== false) parts.push(s('path.raw', {d: this.path(c.xs, c.ys), ...color}));
    parts.push(s('path.line', {d: this.path(c.xs, c.smooth), ...color}));
    for (const p of c.points || []) parts.push(this.evaluation(p, color));
    return parts;
  }

  path(xs, ys) {
    let d = '', open = false;
    for (let i = 0; i < xs.length; i++) {
      if (ys[i] === null || xs[i] === null) { open = false; continue; }
      d += `${open ? 'L' : 'M'}${this.atX(xs[i]).toFixed(1)} ${this.atY(ys[i]).toFixed(1)}`;
      open = true;
    }
    return d;
  }

  bandPath(c) {
    let d = '';
    for (const [from, to] of stretches(c.band, c.smooth)) {
      const upper = [], lower = [];
      for (let i = from; i < to; i++) {
        const x = this.atX(c.xs[i]).toFixed(1);
        upper.push(`${x} ${this.atY(c.smooth[i] + c.band[i]).toFixed(1)}`);
        lower.push(`${x} ${this.atY(c.smooth[i] - c.band[i]).toFixed(1)}`);
      }
      d += `M${upper.join('L')}L${lower.reverse().join('L')}Z`;
    }
    return d;
  }

  evaluation(p, color) {
    const x = this.atX(p.x), bar = p.low !== undefined && p.low !== null;
    return [
      bar && s('line.error-bar', {x1: x, x2: x, y1: this.atY(p.low), y2: this.atY(p.high), ...color}),
      s('circle.point', {cx: x, cy: this.atY(p.y), r: 3.2, ...color}),
    ];
  }

  pointer() {
    this.cursorLine = s('line.cursor', {y1: MARGIN.top, y2: this.height - MARGIN.bottom, visibility: 'hidden'});
    this.cursorDots = this.curves.map((c) => s('circle.cursor-dot', {r: 3, visibility: 'hidden', style: {'--c': c.color}}));
    return [this.cursorLine, this.cursorDots];
  }

  point(event) {
    if (!this.domain) return;
    const {x0, x1} = this.domain, room = this.width - MARGIN.left - MARGIN.right;
    const share = (event.clientX - this.plot.getBoundingClientRect().left - MARGIN.left) / room;
    setCursor(x0 + Math.min(1, Math.max(0, share)) * (x1 - x0));
  }

  key(event) {
    const curve = (this.curves || [])[0], move = {ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity}[event.key];
    if (!curve || move === undefined) return;
    event.preventDefault();
    const last = curve.xs.length - 1, at = app.cursor === null ? last + (move < 0 ? 1 : 0) : nearest(curve.xs, app.cursor);
    setCursor(curve.xs[Math.min(last, Math.max(0, at + move))]);
  }

  showCursor(x) {
    if (!this.cursorLine || !this.curves) return;
    const off = x === null || x < this.domain.x0 || x > this.domain.x1;
    this.cursorLine.setAttribute('visibility', off ? 'hidden' : 'visible');
    if (!off) for (const end of ['x1', 'x2']) this.cursorLine.setAttribute(end, this.atX(x));
    this.curves.forEach((c, i) => this.showDot(c, this.cursorDots[i], off ? null : x));
    this.read(off ? null : x);
  }

  showDot(c, dot, x) {
    const at = x === null || !c.xs.length ? -1 : nearest(c.xs, x), y = at < 0 ? null : c.smooth[at];
    dot.setAttribute('visibility', y === null || y === undefined ? 'hidden' : 'visible');
    if (y === null || y === undefined) return;
    dot.setAttribute('cx', this.atX(c.xs[at]));
    dot.setAttribute('cy', this.atY(y));
  }

  /** The values at the cursor, or the last ones, beside the title. */
  read(x) {
    const several = this.curves.length > 1;
    fill(this.readings,
      x !== null ? h('span.reading-x', {}, wordX(x)) : h('small.muted', {}, 'last point'),
      this.curves.map((c) => h('span.reading', {}, several && h('i.swatch', {style: {'--c': c.color}}),
        several && h('span.reading-name', {}, c.name), h('b', {}, this.reading(c, x)))));
  }

  reading(c, x) {
    if (!c.xs.length) return this.format((lastOf((c.points || []).map((p) => p.y))));
    const at = x === null ? c.xs.length - 1 : nearest(c.xs, x), y = x === null ? lastOf(c.smooth) : c.smooth[at];
    const half = c.band && c.band[at];
    return plusMinus(y, half, this.format);
  }

  /** The points as they are, not smoothed: a line per point of each series. */
  csv() {
    const lines = this.series().flatMap((c) => [
      ...(c.points || []).map((p) => [c.name, p.x, p.y, p.low, p.high]),
      ...(c.points ? [] : c.xs.map((x, i) => [c.name, x, c.ys[i], null, null])),
    ]);
    return [['series', app.x, 'value', 'low', 'high'], ...lines].map((line) => line.map(csvCell).join(',')).join('\n') + '\n';
  }

  description() {
    const parts = this.curves.map((c) => `${c.name}: from ${this.format(c.smooth.find((v) => v !== null))} to ${this.format(lastOf(c.smooth))}`);
    return visible(`${this.title}. ${parts.join('; ')}`);
  }
}

/** A cell of CSV. A text that a spreadsheet would take for a formula begins with an apostrophe. */
function csvCell(value) {
  if (value === null || value === undefined) return '';
  if (typeof value === 'number') return String(value);
  const text = visible(value);
  return '"' + (/^[=+\-@\t]/.test(text) ? "'" : '') + text.replaceAll('"', '""') + '"';
}

/** Give a text to the browser as a file. */
function saveText(name, text) {
  const address = URL.createObjectURL(new Blob([text], {type: 'text/csv'}));
  const link = h('a', {href: address, download: name.replace(/[^A-Za-z0-9._-]+/g, '-')});
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

/** A range that holds 0 where that is near, and has a height where all values are the same. */
function roomy(low, high, format) {
  if (low >= 0 && low < 0.35 * high) low = 0;
  if (high - low > 1e-12 * Math.max(1e-12, Math.abs(high), Math.abs(low))) return [low, high];
  if (low === 0 || format === percent) return [0, Math.max(high, format === percent ? 1 : 0) || 1];
  return low > 0 ? [0.5 * low, 1.5 * high] : [1.5 * low, 0.5 * high];
}

/** Ends of the intervals, as far as they may stretch the chart: numbers that are never negative have none below 0, and
 * an interval far wider than the curve is cut. */
function bandEnds(c, floor) {
  if (!c.band) return [];
  const [low, high] = extent(c.ys), room = 0.75 * (high - low || Math.abs(high) || 1);
  return c.smooth.flatMap((v, i) => (v === null || c.band[i] === null ? [] : [Math.max(floor, low - room, v - c.band[i]), Math.min(high + room, v + c.band[i])]));
}

/** Index ranges in which neither list has a hole. */
function stretches(a, b) {
  const found = [];
  let from = -1;
  for (let i = 0; i <= a.length; i++) {
    const whole = i < a.length && a[i] !== null && b[i] !== null;
    if (whole && from < 0) from = i;
    if (!whole && from >= 0) { if (i - from > 1) found.push([from, i]); from = -1; }
  }
  return found;
}

/** The x values of a run's points, by the axis that is chosen. */
function xsOf(run) {
  const {steps, times, metrics} = run.curves;
  if (app.x === 'hours') return times.map((t) => (t - run.started) / 3600);
  if (app.x === 'tokens' && metrics.num_tokens) return metrics.num_tokens.map((n) => n / 1e6);
  return steps;
}

/** A step on the axis that is chosen. */
function xOfStep(run, step) {
  const {steps} = run.curves;
  return steps.length ? xsOf(run)[nearest(steps, step)] : step;
}

function wordX(x) {
  return app.x === 'step' ? 'step ' + Math.round(x) : app.x === 'hours' ? duration(x * 3600) : number(x) + ' M tokens';
}
