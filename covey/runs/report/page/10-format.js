// Numbers as people read them.

/** About three digits: 0, 1, 0.0041, 0.812, 12.4, 1,284, 3.2e-7. */
function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return '–';
  const size = Math.abs(value);
  if (!Number.isFinite(value)) return value > 0 ? '∞' : '−∞';
  if (size >= 1e9 || (size > 0 && size < 1e-4)) return minus(value.toExponential(1));
  if (size >= 100 || Math.abs(value - Math.round(value)) < 1e-9 * size) return minus(Math.round(value).toLocaleString('en-US'));
  const digits = size === 0 ? 0 : Math.min(6, Math.max(0, 2 - Math.floor(Math.log10(size))));
  return minus(value.toFixed(digits));
}

/** A number with half of its interval, both to the digits that the interval allows: 1.17 ± 0.08. */
function plusMinus(value, half, format) {
  if (half === null || half === undefined || !Number.isFinite(half) || !half) return format(value);
  if (format !== number || Math.abs(half) >= 100 || Math.abs(half) < 1e-4) return `${format(value)} ± ${format(half)}`;
  const digits = Math.min(6, Math.max(0, 1 - Math.floor(Math.log10(half) + 1e-9)));
  return `${minus(value.toFixed(digits))} ± ${half.toFixed(digits)}`;
}

/** A label on an axis whose marks are `step` apart: no more digits than tell the marks apart. */
function tickLabel(value, step, format) {
  if (Math.abs(value) < step * 1e-6) return format === percent ? '0 %' : '0';
  if (format === duration) return duration(value);
  if (format === megabytes && step < 100) return (value / 1024).toFixed(step < 10 ? 3 : 2) + ' G';
  if (format === megabytes) return megabytes(value);
  const scaled = format === percent ? 100 * value : value, gap = format === percent ? 100 * step : step, unit = format === percent ? ' %' : '';
  if (Math.abs(scaled) >= 1e4) return minus(compact(scaled)) + unit;
  if (gap < 1e-3) return minus(Number(scaled.toPrecision(3)).toExponential().replace('e-', 'e−')) + unit;
  const digits = Math.max(0, Math.ceil(-Math.log10(gap) - 1e-9)) + (/^25|^2\.5/.test(gap.toPrecision(3).replace(/^0\.0*/, '')) && gap < 1 ? 1 : 0);
  return minus(scaled.toFixed(Math.min(6, digits))) + unit;
}

function compact(value) {
  const size = Math.abs(value), [by, unit] = size >= 1e9 ? [1e9, 'G'] : size >= 1e6 ? [1e6, 'M'] : [1e3, 'k'];
  return Number((value / by).toPrecision(3)) + unit;
}

function signed(value) { return value > 0 ? '+' + number(value) : number(value); }

function minus(text) { return text.replace('-', '−').replace('e−', 'e−').replace('e+', 'e'); }

function percent(share) {
  if (share === null || share === undefined || Number.isNaN(share)) return '–';
  const value = 100 * share;
  if (value > 0 && value < 0.05) return '<0.1 %';
  return (Math.abs(value) > 0 && Math.abs(value) < 9.95 ? value.toFixed(1) : value.toFixed(0)) + ' %';
}

/** Two units at most: 64 µs, 53 ms, 0.82 s, 14 s, 3 min 20 s, 2 h 05 min, 4 d 3 h. */
function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return '–';
  if (seconds > 0 && seconds < 1e-3) return Number((seconds * 1e6).toPrecision(2)) + ' µs';
  if (seconds > 0 && seconds < 0.1) return Number((seconds * 1e3).toPrecision(2)) + ' ms';
  if (seconds < 10) return (seconds < 1 ? seconds.toPrecision(2) : seconds.toFixed(1)) + ' s';
  const whole = Math.round(seconds), pad = (n) => String(n).padStart(2, '0');
  if (whole < 60) return whole + ' s';
  if (whole < 3600) return Math.floor(whole / 60) + ' min ' + pad(whole % 60) + ' s';
  if (whole < 86400) return Math.floor(whole / 3600) + ' h ' + pad(Math.floor((whole % 3600) / 60)) + ' min';
  return Math.floor(whole / 86400) + ' d ' + Math.floor((whole % 86400) / 3600) + ' h';
}

function megabytes(mb) { return mb >= 1024 ? (mb / 1024).toFixed(1) + ' GB' : number(mb) + ' MB'; }

function count(n, one, many) { return n.toLocaleString('en-US') + ' ' + (n === 1 ? one : many || one + 's'); }

function moment(seconds) {
  const date = new Date(seconds * 1000), pad = (n) => String(n).padStart(2, '0');
  return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())} ` +
    `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
}

function pValue(p) { return p === null ? '–' : p < 0.001 ? 'p < 0.001' : 'p = ' + p.toFixed(p < 0.1 ? 3 : 2); }

/** How to show the values of a metric, by its name. */
function formatOf(name) {
  if (/(_ratio|_share$|^frac_|\/region_mean|\/failed$|\/unscored$|\/failure_frequency$|^episodes\/ended\/|^sampling\/ess$)/.test(name) || /clip_ratio\//.test(name)) return percent;
  if (/^(time\/|step_time|runtime|engine\/sync)|^tools\/.*\/seconds$|^engine\/wait_seconds$|^async\/(wait_|.*_seconds$)/.test(name)) return duration;
  if (/_mb$/.test(name)) return megabytes;
  return number;
}
