// Makes visible what a text hides: control characters, marks that turn the direction of writing, characters of no width.

const HIDDEN = new RegExp(
  '[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f' +
  '\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u3164\\ufe00-\\ufe0d\\ufeff\\uffa0\\ufff0-\\ufffb\\ud800-\\udfff' +
  '\\u{1d173}-\\u{1d17a}\\u{e0000}-\\u{e0fff}]', 'gu');

const CONTROLS = ('NUL SOH STX ETX EOT ENQ ACK BEL BS TAB LF VT FF CR SO SI DLE DC1 DC2 DC3 DC4 NAK SYN ETB CAN EM SUB ESC ' +
  'FS GS RS US').split(' ');

/** Append a text to a node, each hidden character as a small mark with its code. */
function appendText(node, text) {
  let from = 0;
  HIDDEN.lastIndex = 0;
  for (let found = HIDDEN.exec(text); found; found = HIDDEN.exec(text)) {
    if (found.index > from) node.append(document.createTextNode(text.slice(from, found.index)));
    node.append(hiddenMark(found[0]));
    from = found.index + found[0].length;
  }
  if (from < text.length) node.append(document.createTextNode(from ? text.slice(from) : text));
}

function hiddenMark(character) {
  const code = character.codePointAt(0);
  const name = 'U+' + code.toString(16).toUpperCase().padStart(4, '0');
  const mark = document.createElement('span');
  mark.className = 'hidden-mark';
  mark.title = name;
  mark.textContent = CONTROLS[code] || name;
  return mark;
}

/** The same as a plain string, for places that hold no elements (titles, options). */
function visible(text) {
  return String(text).replace(HIDDEN, (character) => hiddenMark(character).textContent);
}

/** The start of a text on one line. */
function excerpt(text, length) {
  const flat = text.slice(0, 4 * length).replace(/\s+/g, ' ').trim();
  return flat.length > length ? flat.slice(0, length - 1) + '…' : flat;
}
