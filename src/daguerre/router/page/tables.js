// Tables and curves that change in place: what stays equal is not touched, so selections and focus are kept.

import { element } from "./elements.js";

const SVG = "http://www.w3.org/2000/svg";

export function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Make the children of a node those of the keys, in their order; add(key) makes a new one.
export function keyed(parent, keys, add) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const wanted = new Set(keys);
  for (const [key, child] of known) if (!wanted.has(key)) child.remove();
  keys.forEach((key, place) => {
    let child = known.get(key);
    if (!child) {
      child = add(key);
      child.dataset.key = key;
    }
    if (parent.children[place] !== child) parent.insertBefore(child, parent.children[place] ?? null);
  });
  return [...parent.children];
}

// A table of columns {name, text(item), kind, tone(item), draw(cell, item)}. Returns show(items, keyOf).
// Roles are written out because a narrow screen shows rows as blocks, which are no tables to screen readers.
export function table(node, columns) {
  node.setAttribute("role", "table");
  const head = node.createTHead();
  head.setAttribute("role", "rowgroup");
  const names = head.insertRow();
  names.setAttribute("role", "row");
  for (const column of columns) {
    const cell = element("th", column.kind, column.name);
    cell.scope = "col";
    cell.setAttribute("role", "columnheader");
    names.append(cell);
  }
  const body = node.createTBody();
  body.setAttribute("role", "rowgroup");
  return (items, keyOf) => {
    const rows = keyed(body, items.map(keyOf), () => emptyRow(columns));
    items.forEach((item, place) => fillRow(rows[place], columns, item));
  };
}

function emptyRow(columns) {
  const row = element("tr");
  row.setAttribute("role", "row");
  columns.forEach((column, place) => {
    const cell = element(place === 0 ? "th" : "td");
    if (place === 0) cell.scope = "row";
    cell.setAttribute("role", place === 0 ? "rowheader" : "cell");
    cell.dataset.name = column.name;
    row.append(cell);
  });
  return row;
}

function fillRow(row, columns, item) {
  columns.forEach((column, place) => {
    const cell = row.children[place];
    cell.className = [column.kind, column.tone?.(item)].filter(Boolean).join(" ");
    if (column.draw) column.draw(cell, item);
    else put(cell, column.text(item));
  });
}

// A place for a curve. Numbers beside it say the same, so it is only a picture.
export function curve() {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "curve");
  svg.setAttribute("viewBox", "0 0 100 20");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  svg.append(document.createElementNS(SVG, "path"));
  return svg;
}

// Draw numbers from 0 to the largest, the last of them at the right of so many places; null is a gap.
export function bend(svg, values, places) {
  const most = Math.max(...values.filter((value) => value !== null), 0) || 1;
  const first = places - values.length;
  let path = "";
  let drawing = false;
  values.forEach((value, place) => {
    if (value !== null) {
      const across = (100 * (first + place)) / (places - 1);
      path += `${drawing ? "L" : "M"}${across.toFixed(1)} ${(19 - (18 * value) / most).toFixed(1)}`;
    }
    drawing = value !== null;
  });
  svg.firstChild.setAttribute("d", path);
}
