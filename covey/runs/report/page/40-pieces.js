// Pieces that several views are made of.

const SHOWN_CHARS = 12000; // of a text at once; the rest on request, so that no text can freeze the page

/** A text as it was written, everything hidden marked, long ones in parts. */
function textBlock(text, parts) {
  const block = h('div.text', {dir: 'ltr'});
  if (text === '') return fill(block, h('span.muted', {}, '(empty)'));
  if (parts) { for (const [kind, part] of parts) block.append(h('span.' + kind, {text: part})); return block; }
  let shown = 0;
  const more = h('button.link', {on: {click: () => next()}});
  const next = () => {
    more.remove();
    const end = shown + (shown ? 4 : 1) * SHOWN_CHARS;
    block.append(h('span', {text: text.slice(shown, end)}));
    shown = Math.min(text.length, end);
    if (shown < text.length) {
      fill(more, `show more (${(text.length - shown).toLocaleString('en-US')} characters left)`);
      block.append(more);
    }
  };
  next();
  return block;
}

/** A prompt: text, or the messages of a chat. */
function promptBlock(entry, table) {
  if (entry.prompt === undefined) return h('p.muted', {}, 'The texts of this group are not recorded (record_completions).');
  if (!Array.isArray(entry.prompt)) return [(entry.pictures || []).map((one) => pictureNode(one, table)), textBlock(String(entry.prompt))];
  return h('div.messages', {}, entry.prompt.map((message) =>
    h('div.message', {}, h('span.role', {}, String(message.role || '?')), h('div', {}, contentBlocks(message, table)))));
}

/** What a message says, part by part: texts, and pictures where they stand. */
function contentBlocks(message, table) {
  if (!Array.isArray(message.content) || !message.content.some(isPicture)) return textBlock(contentOf(message));
  return message.content.map((part) => isPicture(part) ? pictureNode(part, table)
    : textBlock(part && typeof part.text === 'string' ? part.text : JSON.stringify(part)));
}

function isPicture(part) { return Boolean(part) && (part.type === 'image' || part.type === 'image_url'); }

/** A picture in words, which give way to the picture where it is recorded, or become a link to it. */
function pictureNode(part, table) {
  const [width, height] = Array.isArray(part.size) ? part.size.map(Number) : [], digest = String(part.digest || '');
  const words = '[' + ['picture', width > 0 && height > 0 && `${width}×${height}`, digest.slice(0, 4)].filter(Boolean).join(' ') + ']';
  const node = h('span.picture', {title: words}, words);
  if (table) {
    table.source.picture(digest).then((address) => fill(node, address.startsWith('data:')
      ? h(Math.max(width, height) < 96 ? 'img.tiny' : 'img', {src: address, alt: words}) : h('a', {href: address, target: '_blank', rel: 'noreferrer'}, words)), () => {});
  }
  return node;
}

function contentOf(message) {
  return typeof message.content === 'string' ? message.content : JSON.stringify(message.content ?? '', null, 1);
}

/** The other columns of a prompt's row, folded. */
function columnsBlock(entry) {
  const columns = Object.entries(entry.columns || {});
  if (!columns.length) return null;
  return h('details.columns', {}, h('summary', {}, `${count(columns.length, 'column')} of the row`),
    h('dl', {}, columns.map(([name, value]) => [h('dt', {}, name), h('dd', {}, cut(plainText(value), 2000))])));
}

function plainText(value) { return typeof value === 'string' ? value : JSON.stringify(value); }
function cut(text, length) { return text.length > length ? text.slice(0, length) + ' …' : text; }

/** What each reward gave: a name and a value, or why there is none. */
function scoreList(table, row) {
  return h('ul.scores', {}, table.rewards.map((reward) => {
    const status = STATUSES[table.columns['status/' + reward][row]], value = table.columns['score/' + reward][row];
    const shown = status === 'value' ? number(value) : STATUS_WORDS[status];
    return h('li.' + status, {}, h('span', {}, reward), h('b', {}, shown));
  }));
}

/** One completion: its numbers, its scores, its text, what went wrong. */
function completionCard(table, row, {parts, note} = {}) {
  const {columns} = table, body = h('div.card-body', {}, h('p.muted', {}, '…'));
  const finish = FINISHES[columns.finish[row]];
  const head = h('header.card-head', {},
    h('span.index', {}, '#' + (columns.index[row] + 1)),
    h('span.total', {title: 'weighted sum of the scores'}, number(columns.total[row])),
    advantageBar(columns.advantage[row]),
    h('span.advantage-value', {title: 'advantage'}, signed(columns.advantage[row])),
    h('span.facts', {}, [`${columns.tokens[row].toLocaleString('en-US')} tokens`, ...episodeFacts(columns, row)].join(' · '),
      FINISH_WORDS[finish] && h(isCut(columns, row) || finish === 'failed' ? 'em' : 'span.ended', {}, FINISH_WORDS[finish])),
    note && h('span.note', {}, note));
  const card = h('article.card', {}, head, scoreList(table, row), body);
  table.text(row).then((entry) => fill(body, completionBody(table, row, entry, parts)), () => fill(body, 'cannot be read'));
  return card;
}

function completionBody(table, row, entry, parts) {
  const errors = Object.entries(entry.error || {});
  return [
    entry.text === undefined ? h('p.muted', {}, textMissing(table, row)) : entry.messages && !parts ? chatBlock(entry) : textBlock(entry.text, parts),
    errors.map(([reward, error]) => h('details.error', {open: true}, h('summary', {}, `${reward} failed`), h('pre', {text: cut(error, 8000)}))),
    entry.extra && h('dl.extras', {}, Object.entries(entry.extra).map(([name, value]) =>
      value === null ? null : [h('dt', {}, name), h('dd', {}, cut(plainText(value), 500))])),
  ];
}

function textMissing(table, row) {
  return table.columns.text[row] === 2
    ? 'The text is in the record and not in this file, which would exceed its size limit (covey report --max-size).'
    : 'The text is not recorded (record_completions).';
}

function empty(title, ...words) { return h('div.empty', {}, h('h3', {}, title), h('p', {}, words)); }

function select(label, options, value, change) {
  const node = h('select', {'aria-label': label, title: label, on: {change: () => change(node.value)}},
    options.map(([key, word]) => h('option', {value: key, selected: key === value}, word)));
  return node;
}

function searchField(label, change) {
  const node = h('input.search', {type: 'search', placeholder: label, 'aria-label': label, spellcheck: 'false',
    on: {input: afterPause(() => change(node.value), 200)}});
  return node;
}

/** Buttons of which one is chosen. */
function choice(label, options, value, change) {
  const buttons = options.map(([key, word]) => h('button', {type: 'button', 'aria-pressed': String(key === value),
    on: {click: () => { for (const b of buttons) b.setAttribute('aria-pressed', String(b === buttons[options.findIndex((o) => o[0] === key)])); change(key); }}}, word));
  return h('div.choice', {role: 'group', 'aria-label': label}, buttons);
}

function section(title, note, ...children) {
  return h('section.block', {}, h('h2', {}, title, note && h('small', {}, note)), children);
}

/** Which run is looked at closely, where there are several. */
function runSelect() {
  if (!severalRuns()) return null;
  return select('the run that is looked at closely', app.runs.map((run) => [String(run.number), visible(run.name)]), String(app.run), (value) => {
    app.run = Number(value);
    emit('rebuild');
    header();
  });
}

/** Which completions are looked at: those of training, or of an evaluation set. */
function sourceSelect(value, change) {
  const run = currentRun();
  if (run.completions.length < 2) return null;
  return select('source', run.completions.map((table, i) => [String(i), i ? 'evaluation ' + visible(table.name) : 'training']),
    String(value), (v) => change(Number(v)));
}
