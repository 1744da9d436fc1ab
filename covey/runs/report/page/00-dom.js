// Elements are made here and nowhere else. Strings become text, never markup; no attribute takes code.

const SVG_NAMESPACE = 'http://www.w3.org/2000/svg';

/** An HTML element: h('div.name', {title: 'x', on: {click: f}}, 'text', child). */
function h(tag, props, ...children) {
  const [name, ...classes] = tag.split('.');
  const node = document.createElement(name || 'div');
  if (classes.length) node.className = classes.join(' ');
  return dress(node, props, children);
}

/** An SVG element. */
function s(tag, props, ...children) {
  const [name, ...classes] = tag.split('.');
  const node = document.createElementNS(SVG_NAMESPACE, name);
  if (classes.length) node.setAttribute('class', classes.join(' '));
  return dress(node, props, children);
}

function dress(node, props, children) {
  for (const [key, value] of Object.entries(props || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key === 'on') for (const [type, listener] of Object.entries(value)) node.addEventListener(type, listener);
    else if (key === 'style') for (const [name, v] of Object.entries(value)) node.style.setProperty(name, v);
    else if (key === 'text') appendText(node, value);
    else node.setAttribute(key, value === true ? '' : value);
  }
  append(node, children);
  return node;
}

function append(node, children) {
  for (const child of children) {
    if (Array.isArray(child)) append(node, child);
    else if (child instanceof Node) node.append(child);
    else if (child !== undefined && child !== null && child !== false) appendText(node, String(child));
  }
}

/** Replace what is inside a node. */
function fill(node, ...children) {
  node.replaceChildren();
  append(node, children);
  return node;
}

/** Run at most once per frame, with the last arguments. */
function perFrame(f) {
  let waiting = false, last;
  return (...args) => {
    last = args;
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; f(...last); });
  };
}

/** Wait until the user has stopped for a moment. */
function afterPause(f, ms = 150) {
  let timer;
  return (...args) => { clearTimeout(timer); timer = setTimeout(() => f(...args), ms); };
}
