"use strict";
// What a page is given to show, and what was done on it. State can be read from outside, and set from in here only.
const given = JSON.parse(document.getElementById("given").textContent);
const state = { over: false };
Object.defineProperty(window, "pageState", { get: () => structuredClone(state), configurable: false });
const make = (kind, attributes = {}, text = "") => {
  const made = document.createElement(kind);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  return made;
};
const put = (where, ...parts) => { where.append(...parts); return parts[parts.length - 1]; };
const place = document.querySelector("main");
const field = (name, made) => { const label = put(place, make("label", {}, name)); return put(label, made); };
const button = (name, act, where = place) => {
  const made = put(where, make("button", { type: "button" }, name));
  made.addEventListener("click", () => act(name));
  return made;
};
// The first thing that is sent counts; afterwards the page is empty.
const finish = (done) => {
  if (state.over) return;
  Object.assign(state, done, { over: true });
  place.replaceChildren(make("p", {}, "Sent."));
};
