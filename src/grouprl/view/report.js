"use strict";
const tip = document.getElementById("tip");

function show(text, event) {
  tip.textContent = text;
  tip.hidden = false;
  const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
  tip.style.left = Math.max(4, Math.min(event.clientX + 14, room)) + window.scrollX + "px";
  tip.style.top = event.clientY + 16 + window.scrollY + "px";
}

function short(value) {
  const size = Math.abs(value);
  return size >= 10000 || (size > 0 && size < 0.001) ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}

function nearest(xs, x) {
  let best = 0;
  for (let i = 1; i < xs.length; i++) if (Math.abs(xs[i] - x) < Math.abs(xs[best] - x)) best = i;
  return best;
}

function follow(figure) {
  const { box: [x0, x1, left, right, width], across, series } = JSON.parse(figure.dataset.curves);
  const svg = figure.querySelector("svg"), cross = svg.querySelector(".cross");
  svg.addEventListener("pointermove", (event) => {
    const frame = svg.getBoundingClientRect();
    const px = ((event.clientX - frame.left) / frame.width) * width;
    const wanted = x0 + ((px - left) / (right - left)) * (x1 - x0);
    const step = series.map((s) => s.x[nearest(s.x, wanted)])
      .reduce((a, b) => (Math.abs(b - wanted) < Math.abs(a - wanted) ? b : a));
    const at = left + ((step - x0) / (x1 - x0)) * (right - left);
    cross.setAttribute("x1", at);
    cross.setAttribute("x2", at);
    cross.removeAttribute("hidden");
    const lines = series.map((s) => {
      const i = nearest(s.x, step);
      return s.n + "  " + short(s.y[i]) + (s.x[i] === step ? "" : "  (" + across + " " + s.x[i] + ")");
    });
    show(across + " " + step + "\n" + lines.join("\n"), event);
  });
  svg.addEventListener("pointerleave", () => { cross.setAttribute("hidden", ""); tip.hidden = true; });
}

document.querySelectorAll("figure.chart").forEach(follow);

const rollouts = document.getElementById("rollouts");
if (rollouts) rollouts.addEventListener("pointerover", (event) => {
  const values = event.target.dataset && event.target.dataset.v;
  if (values === undefined) { tip.hidden = true; return; }
  const [logp, entropy, advantage, ratio] = values.split("|");
  const lines = [];
  if (logp !== "") lines.push("log-prob  " + logp + "  (p " + short(Math.exp(Number(logp))) + ")");
  if (entropy !== "") lines.push("entropy   " + entropy + " nats");
  if (advantage !== "") lines.push("advantage " + advantage);
  if (ratio) lines.push("log π/π_ref " + ratio);
  show(lines.join("\n") || "no numbers stored", event);
});
if (rollouts) rollouts.addEventListener("pointerleave", () => { tip.hidden = true; });
