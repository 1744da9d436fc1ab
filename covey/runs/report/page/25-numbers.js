// Smoothing, ranges and ticks of curves.

/**
 * Values smoothed by a Gaussian over neighbouring points, and half of the 95 % interval of that mean; holes stay holes.
 * Variances add up with the squares of the weights; degrees of freedom after Welch and Satterthwaite.
 */
function smoothed(values, errors, sigma) {
  const reach = sigma < 0.3 ? 0 : Math.ceil(3 * sigma), kernel = [];
  for (let k = 0; k <= reach; k++) kernel.push(reach ? Math.exp(-0.5 * (k / sigma) ** 2) : 1);
  return {
    values: reach ? values.map((value, i) => (value === null ? null : around(values, i, reach, kernel))) : values,
    halves: errors && values.map((value, i) => (value === null ? null : halfAround(errors, i, reach, kernel))),
  };
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

function halfAround({se, degrees}, i, reach, kernel) {
  let weight = 0, squares = 0, fourths = 0;
  for (let j = Math.max(0, i - reach); j <= Math.min(se.length - 1, i + reach); j++) {
    if (se[j] === null) continue;
    const part = (kernel[Math.abs(i - j)] * se[j]) ** 2;
    weight += kernel[Math.abs(i - j)];
    squares += part;
    fourths += part ** 2 / degrees[j];
  }
  if (!weight) return null;
  return fourths ? studentQuantile(squares ** 2 / fourths) * Math.sqrt(squares) / weight : 0;
}

/** The 97.5 % quantile of Student's t: exact for 1 and 2 degrees, between whole ones geometric, else the expansion. */
function studentQuantile(degrees) {
  const exact = [12.7062, 4.30265, 3.18245];
  if (degrees < 3) {
    const low = Math.max(1, Math.floor(degrees)), share = Math.max(0, degrees - low);
    return exact[low - 1] ** (1 - share) * exact[Math.min(2, low)] ** share;
  }
  return 1.95996 + 2.37227 / degrees + 2.8225 / degrees ** 2 + 2.55585 / degrees ** 3 + 1.58953 / degrees ** 4;
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
