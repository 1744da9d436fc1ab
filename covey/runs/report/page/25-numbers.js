// Smoothing, ranges and ticks of curves.

/** Values smoothed by a Gaussian over neighbouring points; holes stay holes. Half-widths add up in squares. */
function smoothed(values, halves, sigma) {
  if (sigma < 0.3) return {values, halves};
  const reach = Math.ceil(3 * sigma), kernel = [];
  for (let k = 0; k <= reach; k++) kernel.push(Math.exp(-0.5 * (k / sigma) ** 2));
  const means = values.map((value, i) => (value === null ? null : around(values, i, reach, kernel)));
  const bands = halves && halves.map((half, i) => (half === null ? null : aroundSquares(halves, i, reach, kernel)));
  return {values: means, halves: bands};
}

function around(values, i, reach, kernel) {
  let sum = 0, weight = 0;
  for (let j = Math.max(0, i - reach); j <= Math.min(values.length - 1, i + reach); j++) {
    if (values[j] === null) continue;
    sum += kernel[Math.abs(i - j)] * values[j];
    weight += kernel[Math.abs(i - j)];
  }
  return sum / weight;
}

function aroundSquares(halves, i, reach, kernel) {
  let squares = 0, weight = 0;
  for (let j = Math.max(0, i - reach); j <= Math.min(halves.length - 1, i + reach); j++) {
    if (halves[j] === null) continue;
    squares += (kernel[Math.abs(i - j)] * halves[j]) ** 2;
    weight += kernel[Math.abs(i - j)];
  }
  return Math.sqrt(squares) / weight;
}

/** Width of the Gaussian in points for the slider's position in [0, 1]. */
function sigmaOf(position, points) { return position * position * Math.max(4, points / 12); }

/** The middle 99 % of some values, so that one spike does not flatten a curve; all of them where that would be flat. */
function extent(values) {
  const kept = values.filter((v) => v !== null && Number.isFinite(v)).sort((a, b) => a - b);
  if (!kept.length) return [0, 1];
  const cut = kept.length > 50 ? Math.floor(kept.length * 0.005) : 0;
  const middle = [kept[cut], kept[kept.length - 1 - cut]];
  return middle[0] < middle[1] ? middle : [kept[0], kept[kept.length - 1]];
}

/** Round numbers across a range. */
function ticks(low, high, wanted) {
  const span = high - low || 1, rough = span / Math.max(1, wanted), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].find((m) => m * power >= rough) * power;
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return found;
}

function lastOf(values) {
  for (let i = values.length - 1; i >= 0; i--) if (values[i] !== null && values[i] !== undefined) return values[i];
  return null;
}

function meanOf(values) {
  const kept = values.filter((v) => v !== null && Number.isFinite(v));
  return kept.length ? kept.reduce((a, b) => a + b, 0) / kept.length : null;
}

/** Where in a sorted list a value stands: index of the nearest. */
function nearest(sorted, value) {
  let low = 0, high = sorted.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle + 1; else high = middle;
  }
  return low > 0 && value - sorted[low - 1] < sorted[low] - value ? low - 1 : low;
}
