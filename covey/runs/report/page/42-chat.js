// An episode as a chat: a bubble per message, grey where the policy did not write it, and a bar per turn.

const SHOWN_MESSAGES = 40; // at once; the rest on request
const STRANGE_NATS = 3;    // mean -log p from which on the bar of a turn is full

/** Turns and calls of a completion, in words; nothing for a plain one. */
function episodeFacts(columns, row) {
  if (columns.num_turns[row] < 0) return [];
  const failed = columns.call_failures[row];
  return [count(columns.num_turns[row], 'turn'), count(columns.calls[row], 'call') + (failed ? `, ${failed} failed` : '')];
}

function chatBlock(entry) {
  const block = h('div.chat'), messages = entry.messages, turns = entry.turns || [];
  // Calls between tags: the results, and so all turns, stand in one message.
  const joined = messages.filter((m) => m.role === 'assistant').length !== turns.length;
  const more = h('button.link', {on: {click: () => next()}});
  let shown = 0, turn = 0;
  const next = () => {
    more.remove();
    for (const message of messages.slice(shown, shown + SHOWN_MESSAGES)) {
      const own = message.role === 'assistant';
      if (own && !joined) append(block, [turnBar(turns[turn], turn + 1)]);
      append(block, [bubble(message, own, own && !joined ? turns[turn].calls : namedCalls(message))]);
      if (own) turn += 1;
    }
    shown += SHOWN_MESSAGES;
    if (shown < messages.length) { fill(more, `show more (${count(messages.length - shown, 'message')} left)`); block.append(more); }
  };
  if (entry.prompt !== undefined) block.append(h('details.own-prompt', {}, h('summary', {}, 'its own prompt'), promptBlock(entry)));
  next();
  if (joined) append(block, turns.map((one, i) => [turnBar(one, i + 1), callList(one.calls)]));
  return block;
}

function bubble(message, own, calls) {
  const thought = message.reasoning_content || message.thinking, text = contentOf(message);
  return h('div.bubble' + (own ? '' : '.injected'), {},
    h('span.role', {}, [message.role || '?', message.name].filter(Boolean).map((word) => excerpt(String(word), 60)).join(' ')),
    h('div', {}, thought && h('details.thought', {}, h('summary', {}, 'thinking'), textBlock(plainText(thought))),
      (text !== '' || !calls.length) && textBlock(text), callList(calls)));
}

/** Calls of a message, of which it is not known how they went. */
function namedCalls(message) {
  const calls = Array.isArray(message.tool_calls) ? message.tool_calls : [];
  return calls.map((call) => (call && call.function) || call || {}).map((call) => ({name: call.name, arguments: plainText(call.arguments ?? {}), status: 'ok'}));
}

function callList(calls) { return calls.length ? h('ul.calls', {}, calls.map(callLine)) : null; }

/** One call: its name, its arguments, what went wrong, and how long it took. */
function callLine(call) {
  const wrong = call.status === 'not_run' ? 'not run' : call.status === 'ok' ? null : 'failed: ' + call.status;
  return h('li', {}, h('code', {}, `${excerpt(String(call.name || '?'), 60)}(${excerpt(call.arguments || '', 400)})`),
    wrong && h(call.status === 'not_run' ? 'span.muted' : 'em', {}, wrong), call.seconds > 0.0005 && h('span.muted', {}, duration(call.seconds)));
}

/** A turn in numbers: how sure the policy was, what the turn earned, what the group says about it, how long its calls took. */
function turnBar(turn, place) {
  const parts = [count(turn.sampled, 'token'), turn.injected && `${turn.injected} answered`].filter(Boolean);
  const scores = Object.entries(turn.scores || {});
  return h('div.turn', {}, h('b', {}, `turn ${place}`), h('span.facts', {}, parts.join(', ')),
    turn.logprob !== null && h('span', {title: 'mean log-probability of its tokens, in nats'}, meter(-turn.logprob / STRANGE_NATS), ' log p ', signed(turn.logprob)),
    turn.advantage !== undefined && h('span', {title: 'advantage'}, advantageBar(turn.advantage), ' ', signed(turn.advantage)),
    turn.reward !== undefined && h('span', {title: 'what the environment said of it'}, 'reward ', number(turn.reward)),
    scores.map(([name, value]) => h('span', {}, name, ' ', number(value))),
    turn.seconds > 0.0005 && h('span.muted', {title: 'time of its calls'}, duration(turn.seconds)));
}
