const stored = document.getElementById("stored") ? JSON.parse(document.getElementById("stored").textContent) : null;
const view = document.getElementById("view"), said = document.getElementById("said"), keys = document.getElementById("keys");
const MORE = ["ended", "agent", "status", "source", "correct", "used", "prompt_id", "reward_min", "reward_max", "length_min", "length_max"];
const OF_RUN = ["step", "group", "sample", "row", "prompt_id", "ended", "agent", "status", "source"]; // values that another run may not have
const COLOURS = 8, BATCH = 12, PAGE = 50, LIVE_SECONDS = 4, PATIENCE = 400;
let lines = [], place = null, drawing = 0, seen = "";

// ---- addresses: everything that is shown stands behind the #, so that an address can be passed on

function address(tab, query) {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) for (const each of [value].flat()) if (each !== "" && each != null) found.append(name, each);
  const text = found.toString();
  return "#/" + tab + (text ? "?" + text : "");
}

function read() {
  const [tab, text] = location.hash.replace(/^#\//, "").split(/\?(.*)/s), query = {};
  for (const [name, value] of new URLSearchParams(text || "")) (query[name] = query[name] || []).push(value);
  return { tab: tab || "runs", query };
}

const one = (name, fallback = "") => (place.query[name] || [fallback])[0];
const go = (changes, tab = place.tab) => { location.hash = address(tab, { ...place.query, ...changes }); };
const names = () => { const known = lines.map((each) => each.name), wanted = (place.query.run || []).filter((each) => known.includes(each)); return wanted.length ? wanted : known; };

// ---- questions: the server's, or those whose answers stand in this file

async function ask(name, query) {
  if (stored) return kept(name, query);
  const answer = await fetch("api/" + name + address("", query).slice(2)), found = await answer.json();
  if (!answer.ok) throw new Error(found.error.message);
  return found;
}

function kept(name, query) {
  const run = [query.run].flat()[0];
  if (name === "curves") return { curves: [query.metric].flat().map((each) => stored.curves[query.phase || "train"][each]).filter(Boolean) };
  if (name === "rows") return page(select(stored.rows[run], query), stored.rows[run].length, query);
  if (name === "groups") {
    const steps = Object.keys(stored.grouped[run]), found = stored.grouped[run][query.step || steps[steps.length - 1]];
    if (!found) throw new Error("this step is not in the file");
    return found;
  }
  if (name === "group") {
    const found = stored.groups[run][query.step + "/" + query.group];
    if (!found) throw new Error("this group is not in the file");
    return found;
  }
  if (name === "calls") {
    const found = stored.calls[run][query.step + "/" + query.sample + "/" + query.prompt_id];
    if (!found) throw new Error("this episode is not in the file");
    return found;
  }
  return ["runs", "metrics", "settings"].includes(name) ? stored[name] : stored[name][run];
}

const EXACT = ["step", "group", "sample", "row", "prompt_id", "agent", "source", "ended", "status", "correct", "used"];
const RANGES = ["reward", "length", "advantage", "entropy", "logp", "pull", "gradient", "score"];

function select(rows, query) {
  const given = (name) => query[name] !== undefined && query[name] !== "", text = (query.text || "").toLowerCase();
  const found = rows.filter((row) => EXACT.every((name) => !given(name) || (row[name] !== null && String(row[name]) === String(query[name])))
    && RANGES.every((name) => (!given(name + "_min") || (row[name] !== null && row[name] >= Number(query[name + "_min"])))
      && (!given(name + "_max") || (row[name] !== null && row[name] <= Number(query[name + "_max"]))))
    && (!text || (row.completion || "").toLowerCase().includes(text) || (row.prompt || "").toLowerCase().includes(text)));
  const order = query.sort || "step", column = order.replace(/^-/, ""), sign = order.startsWith("-") ? -1 : 1;
  const compare = (a, b) => (a === b ? 0 : a === null ? 1 : b === null ? -1 : (a < b ? -1 : 1) * sign);
  return found.sort((a, b) => compare(a[column], b[column]) || a.step - b.step || a.place - b.place);
}

function page(found, of, query) {
  const offset = Number(query.offset || 0), limit = Number(query.limit || PAGE);
  return { total: found.length, of, offset, limit, rows: found.slice(offset, offset + limit) };
}

// ---- pieces of pages; text is always set as text

function h(tag, attributes = {}, ...inside) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...inside.flat().filter((each) => each !== null && each !== undefined && each !== ""));
  return made;
}

const figures = (value) => (value === null || value === undefined ? "" : typeof value === "boolean" ? (value ? "yes" : "no") : typeof value === "number" ? short(value) : String(value));
const percent = (value) => (value === null ? "" : (100 * value).toFixed(1) + " %");
const link = (words, tab, query) => h("a", { href: address(tab, query) }, words);
const cell = (value, kind) => h("td", { class: kind }, value instanceof Node ? value : figures(value));
const heads = (...columns) => h("thead", {}, h("tr", {}, columns.filter((each) => each !== null).map((each) => (each instanceof Node ? each : h("th", { scope: "col" }, each)))));
const scrolled = (...inside) => h("div", { class: "scroll" }, h("table", { class: "list" }, ...inside));
const muted = (words) => h("p", { class: "muted" }, words);
const NOUNS = { completion: "episode", token: "action" };
const inTerms = (name, words) => ((lines.find((each) => each.name === name) || {}).actions ? words.replace(/completion|token/g, (noun) => NOUNS[noun]) : words);
const sized = (name, count) => count + inTerms(name, count === 1 ? " token" : " tokens");

function chosen(label, name, options, value, attributes = {}) {
  const made = h("select", { name, ...attributes }, options.map(([key, words]) => h("option", { value: key, selected: key === value }, words)));
  return h("label", {}, label, made);
}

const field = (label, name, kind, attributes = {}) => h("label", attributes.wide ? { class: "wide" } : {}, label,
  h("input", { name, type: kind, value: one(name), step: kind === "number" ? "any" : null, placeholder: attributes.hint }));

function filters(...inside) {
  const form = h("form", { class: "filters", onsubmit: (event) => { event.preventDefault(); take(form); } }, ...inside);
  form.addEventListener("change", () => take(form));
  return form;
}

function take(form) {
  const changes = { offset: "", at: "" };
  for (const each of form.elements) if (each.name) changes[each.name] = each.type === "checkbox" ? (each.checked ? "1" : "") : each.value;
  if (changes.run && changes.run !== run()) for (const name of OF_RUN) changes[name] = "";
  go(changes);
}

function run() {
  return names()[0];
}

function whichRun() {
  return lines.length > 1 ? chosen("run", "run", lines.map((each) => [each.name, each.name]), run()) : "";
}

// ---- views

const VIEWS = {
  async runs() {
    const picked = place.query.run || [];
    const body = lines.map((each) => {
      const box = h("input", { type: "checkbox", "aria-label": "show " + each.name, onchange: (event) =>
        go({ run: event.target.checked ? [...picked, each.name] : picked.filter((name) => name !== each.name) }) });
      box.checked = picked.includes(each.name);
      const seconds = each.age, age = seconds < 90 ? Math.round(seconds) + " s" : seconds < 5400 ? Math.round(seconds / 60) + " min" : seconds < 172800 ? Math.round(seconds / 3600) + " h" : Math.round(seconds / 86400) + " d";
      return h("tr", {}, cell(box), cell(link(each.name, "curves", { run: each.name })), cell(each.task), cell(link(each.method, "method", { run: each.name })),
        cell(each.of_steps ? each.steps + " of " + each.of_steps : each.steps, "n"), cell(each.state, "state-" + each.state), cell(each.verdict), cell(age, "n less"),
        cell(h("span", {}, link("rollouts", "rows", { run: each.name }), " · ", link("findings", "findings", { run: each.name }))));
    });
    return [muted("Tick runs to see them together in the other tabs; without a tick all are shown."),
      scrolled(heads("", "run", "task", "method", h("th", { scope: "col", class: "n" }, "steps"), "state", "outcome", h("th", { scope: "col", class: "n less" }, "written"), ""), h("tbody", {}, body))];
  },

  async curves() {
    const phase = one("phase", "train"), { metrics } = await ask("metrics", { run: names() });
    const pattern = one("find"), wanted = place.query.metric, part = matcher(pattern);
    const shown = [...new Set(metrics.filter((each) => each.phase === phase && (wanted ? wanted.includes(each.metric) : part(each.metric))).map((each) => each.metric))];
    const phases = ["train", "eval", "warmup", "pretraining"].filter((each) => each === phase || metrics.some((metric) => metric.phase === each));
    const form = filters(chosen("phase", "phase", phases.map((each) => [each, each]), phase), field("metrics", "find", "search", { wide: true, hint: "name or regular expression" }));
    const charts = h("div", { class: "charts" }), turn = drawing;
    const more = async () => {
      const next = shown.splice(0, BATCH);
      if (!next.length) return;
      const { curves } = await ask("curves", { run: names(), metric: next, phase });
      if (turn !== drawing) return;
      for (const each of curves) charts.append(drawn(each, Boolean(wanted)));
      if (shown.length) watch(charts.lastElementChild, more);
    };
    await more();
    const runs = names(), note = runs.length > COLOURS ? muted("A chart has " + COLOURS + " curves at most: the first runs that have the metric are drawn. Tick fewer under Runs.") : "";
    const all = wanted ? h("p", {}, link("← all metrics", "curves", { ...place.query, metric: "" })) : form;
    return [all, note, shown.length || charts.childElementCount ? charts : muted("No metric fits.")];
  },

  async rows() {
    const name = run(), options = await ask("choices", { run: name }), query = { ...Object.fromEntries(Object.entries(place.query).map(([key, value]) => [key, value[0]])), run: name, limit: PAGE };
    delete query.at;
    const found = await ask("rows", query), sort = one("sort", "step");
    const pick = (label, key, values) => (values.length > 1 || one(key) ? chosen(label, key, [["", "any"], ...values.map((each) => [String(each), String(each)])], one(key)) : "");
    const ends = (label, key) => [field(label + " from", key + "_min", "number"), field("to", key + "_max", "number")];
    const form = filters(whichRun(), field("text", "text", "search", { wide: true, hint: inTerms(name, "in prompts and completions") }), pick("step", "step", options.step), h("details", { class: "more", open: innerWidth > 700 || MORE.some((each) => one(each)) }, h("summary", {}, "more"), pick("ended", "ended", options.ended), pick("agent", "agent", options.agent),
      pick("status", "status", options.status), pick("source", "source", options.source), pick("right", "correct", ["true", "false"]), pick("trained on", "used", ["true", "false"]), ends("reward", "reward"), ends("length", "length"),
      field("prompt", "prompt_id", "search")), h("button", { type: "button", onclick: () => { location.hash = address("rows", { run: name }); } }, "clear"));
    const head = (key, label, kind, title) => h("th", { scope: "col", class: kind, title, "aria-sort": sort === key ? "ascending" : sort === "-" + key ? "descending" : null },
      h("button", { type: "button", onclick: () => go({ sort: sort === "-" + key ? key : "-" + key, offset: "" }) }, label + (sort === key ? " ↑" : sort === "-" + key ? " ↓" : "")));
    const agents = options.agent.length > 0, measured = found.rows.some((row) => row.gradient !== null), scored = found.rows.some((row) => row.score !== null), marked = !scored && found.rows.some((row) => row.correct !== null);
    const body = found.rows.map((row, number) => h("tr", { class: number === Number(one("at", "-1")) ? "at" : null },
      cell(link(String(row.step), "group", { run: name, step: row.step, group: row.group, row: row.place }), "n"), cell((row.prompt_id || "") + " #" + figures(row.sample)), agents ? cell(row.agent) : "",
      cell(row.reward, "n"), scored ? cell(row.score, "n") : "", marked ? cell(row.correct === null ? "" : h("span", { class: "verdict " + (row.correct ? "right" : "wrong") }, row.correct ? "✓" : "✗")) : "", cell(row.length, "n"), cell(row.ended.replaceAll("_", " "), "less"),
      scored ? "" : [cell(row.advantage, "n less"), cell(percent(row.pull), "n less")], measured ? cell(percent(row.gradient), "n less") : null, scored ? "" : cell(row.entropy, "n less"), h("td", { class: "said" }, h("pre", {}, row.completion))));
    const last = Math.min(found.offset + found.limit, found.total), turn = (to) => go({ offset: to || "", at: "" });
    const pager = h("div", { class: "pager" }, h("button", { type: "button", id: "back", disabled: found.offset === 0, onclick: () => turn(Math.max(0, found.offset - PAGE)) }, "‹ back"),
      h("span", {}, found.total ? found.offset + 1 + "–" + last + " of " + found.total + (found.total < found.of ? " that fit, of " + found.of : "") : "no row fits, of " + found.of),
      h("button", { type: "button", id: "on", disabled: last >= found.total, onclick: () => turn(found.offset + PAGE) }, "on ›"), stored && stored.left_out[name] ? muted(stored.left_out[name] + " older rows are not in this file") : "");
    return [form, pager, scrolled(heads(head("step", "step", "n"), head("prompt_id", "prompt"), agents ? head("agent", "agent") : null, head("reward", "reward", "n"), scored ? head("score", "score", "n", "of the reward model that is trained") : null, marked ? head("correct", "right") : null, head("length", "length", "n", inTerms(name, "tokens after the prompt, also those that an environment showed")), head("ended", "ended", "less"),
      ...(scored ? [] : [head("advantage", "advantage", "n less", inTerms(name, "mean over its trained tokens")), head("pull", "pull", "n less", inTerms(name, "share of |advantage|, summed over the trained tokens of the step"))]), measured ? head("gradient", "gradient", "n less", "share of the step's gradient") : null, scored ? null : head("entropy", "entropy", "n less", "mean, in nats"), inTerms(name, "completion")), h("tbody", {}, body))];
  },

  async groups() {
    const name = run(), found = await ask("groups", { run: name, step: one("step") }), most = Math.max(1e-12, ...found.groups.map((each) => each.pull_sum || 0)), measured = found.groups.some((each) => each.gradient_sum !== null), paired = found.groups.some((each) => each.margin !== null), few = paired ? "n less" : "n";
    const form = filters(whichRun(), chosen("step", "step", found.steps.map((each) => [String(each), String(each)]), String(found.step)));
    const bar = (share) => h("meter", { min: 0, max: most, value: share || 0, title: percent(share) });
    const body = found.groups.map((each) => h("tr", {}, cell(link(each.prompt_id || "group " + each.group, "group", { run: name, step: found.step, group: each.group })), cell(each.place_count, few),
      cell(each.reward_mean, few), cell(each.reward_min === null ? "none" : short(each.reward_min) + " to " + short(each.reward_max), few), cell(each.length_mean, "n less"), paired ? [cell(each.margin, "n"), cell(each.margin === null ? "" : verdictOf(each.margin > 0))] : [cell(percent(each.pull_sum), "n"), cell(bar(each.pull_sum), "less")], measured ? cell(percent(each.gradient_sum), "n") : null));
    const head = (words, title, kind = "n") => h("th", { scope: "col", class: kind, title }, words), less = h("th", { scope: "col", class: "n less" }, "length");
    const teach = found.groups.filter((each) => each.reward_min !== each.reward_max).length;
    const right = found.groups.filter((each) => each.margin > 0).length, pairs = found.groups.filter((each) => each.margin !== null).length;
    return [form, muted(paired ? "The model has " + right + " of " + pairs + " pairs right, as it was before the step. Margin: the score of the better completion minus that of the worse; the lowest first." : teach + " of " + found.groups.length + " groups have different rewards. " + inTerms(name, "Pull: the share of |advantage|, summed over the trained tokens of the step. ") + (measured ? "Gradient: the group's true share of the step's gradient G, g·G / |G|²; below 0 it pulls against the others." : "It stands in for the share of the gradient, which this step has not measured (run.record_updates: gradients).")),
      scrolled(heads("prompt", head("rows", null, few), head("reward", "mean", few), head("from, to", null, few), less, ...(paired ? [head("margin", "score of the better minus that of the worse"), h("th", { scope: "col", title: "whether the model gives the better one the higher score" }, "right")] : [head("pull"), h("th", { class: "less", "aria-label": "pull" })]), measured ? head("gradient", "g·G / |G|²") : null), h("tbody", {}, body))];
  },

  async group() {
    const name = run(), at = one("row"), found = await ask("group", { run: name, step: one("step"), group: one("group") });
    const scored = found.rows.some((row) => row.score !== null || Object.keys(row.scores).length), sides = found.pair && found.rows.every((row) => row.source === "demonstration"), ranked = Boolean(scored || sides);
    const kinds = TINTS.filter((each) => found.columns.includes(each.column) && !(ranked && each.name === "advantage") && (each.of !== "version" || found.rows.some((row) => (row.tokens || []).some((token) => token[1 + found.columns.indexOf("version")] !== null))));
    const pair = found.pair, wanted = one("colour") || (pair && pair.log_ratio !== null ? "ratio" : "");
    const colour = kinds.find((each) => each.name === wanted) || kinds[0], to = (group) => go({ group, row: "" });
    const bar = h("div", { class: "pager" }, link("← groups", "groups", { run: name, step: found.step }), h("button", { type: "button", id: "back", disabled: found.previous === null, onclick: () => to(found.previous) }, "‹ group"),
      h("b", {}, "step " + found.step + ", group " + found.group), h("button", { type: "button", id: "on", disabled: found.next === null, onclick: () => to(found.next) }, "group ›"),
      link("how it is computed", "method", { run: name }), kinds.length ? filters(chosen(inTerms(name, "tokens by"), "colour", kinds.map((each) => [each.name, each.words]), colour.name, { id: "colour" })) : "");
    const strongest = colour ? Math.max(1e-12, ...found.rows.flatMap((row) => (row.tokens || []).map((token) => Math.abs(token[1 + found.columns.indexOf(colour.column)] || 0)))) : 1;
    const cards = found.rows.map((row, i) => h("article", { class: String(row.place) === at ? "at" : null, id: "row-" + row.place }, facts(row, name, ranked, sides ? ["chosen", "rejected"][i] : ""), told(row, found.columns, colour, strongest)));
    return [bar, h("pre", { class: "prompt" }, found.rows[0].prompt || ""), pair ? pairNote(pair) : "", colour ? legend(colour, strongest) : "",
      scored || found.columns.includes("push") || !kinds.length ? "": muted("Ratio, clip and weight at the update are not kept for these rows: run.record_updates: tokens."), h("div", { class: "side" }, cards)];
  },

  async calls() {
    const name = run(), found = await ask("calls", { run: name, step: one("step"), prompt_id: one("prompt_id"), sample: one("sample") });
    const bar = h("div", { class: "pager" }, link("← rollouts", "rows", { run: name, step: found.step, prompt_id: found.prompt_id }), h("b", {}, "step " + found.step + ", " + found.prompt_id + " #" + found.sample));
    return [bar, muted("Each box is a row of the episode; a line leads from the row that called it. A box opens its row."), h("div", { class: "scroll" }, callGraph(name, found.rows, (row) => address("group", { run: name, step: found.step, group: row.group, row: row.place })))];
  },

  async findings() {
    const name = run(), found = await ask("findings", { run: name });
    const items = found.findings.map((each) => h("li", { class: each.severity + (each.persists ? "" : " past") },
      h("span", { class: "badge", title: each.code }, each.severity), " ", h("span", { class: "muted" }, each.code + ", " + each.when), h("p", {}, each.text), h("p", { class: "remedy" }, each.remedy),
      each.course.length ? h("p", {}, link(each.key, "curves", { run: name, metric: each.key, phase: each.key.startsWith("eval/") ? "eval" : "train" }), ": " + each.course.map(([step, value]) => short(value) + " (step " + step + ")").join(" → ")) : "",
      h("p", { class: "muted" }, each.rows.length ? each.sign + ":" : "No row is shown. " + each.absent),
      each.rows.length ? h("ul", {}, each.rows.map((row) => h("li", { class: "muted" }, link("step " + row.step + ", " + row.prompt + " #" + row.sample, "rows", { run: name, step: row.step, prompt_id: row.prompt, sample: row.sample }), " " + (row.reward === null ? "no reward" : "reward " + short(row.reward)) + ", " + sized(name, row.tokens) + ", " + row.ended.replaceAll("_", " ")))) : ""));
    const { state } = lines.find((each) => each.name === name) || {}, running = state === "running";
    const told = running ? "The run trains: findings are shown as they change." : state === "stopped" ? "The run was stopped before its end, by an error, by a signal or with its machine: its own output says which." : "";
    const none = !found.examined ? found.remedy : running ? "Nothing was found so far. Most findings need 5 to 20 steps." : "Nothing was found that needs attention.";
    return [filters(whichRun()), told ? muted(told) : "", items.length ? h("ul", { class: "findings" }, items) : muted(none)];
  },

  async settings() {
    const found = await ask("settings", { run: names() }), shown = found.runs.map((name, i) => [name, i]).filter(([name]) => names().includes(name));
    const many = shown.length > 1, part = matcher(one("find")), whole = one("all") === "1" || !many;
    const differs = (row) => new Set(shown.map(([, i]) => row.values[i])).size > 1;
    const rows = found.settings.filter((row) => part(row.setting) && (whole || differs(row)));
    const box = h("input", { type: "checkbox", name: "all" });
    box.checked = whole;
    const form = filters(field("settings", "find", "search", { wide: true, hint: "name or regular expression" }), many ? h("label", {}, "those that are the same, too", box) : "");
    const body = rows.map((row) => h("tr", { class: many && differs(row) ? "different" : null }, h("th", { scope: "row" }, row.setting), shown.map(([, i]) => cell(row.values[i], "value"))));
    return [form, rows.length ? scrolled(heads("setting", ...shown.map(([name]) => name)), h("tbody", {}, body)) : muted(many ? "The runs have the same settings." : "No setting fits.")];
  },

  async method() {
    const name = run(), { objective, card, name: method } = await ask("method", { run: name });
    const parts = objective.length ? scrolled(heads("part", "in words", "in symbols"), h("tbody", {}, objective.map((each) => h("tr", {}, h("th", { scope: "row" }, each.kind), cell(each.words), cell(h("code", {}, each.formula || "")))))) : muted("The parts with the run's settings are written when it ends.");
    const inner = [filters(whichRun()), h("h2", {}, method), h("h3", {}, "As it was set"), parts];
    if (!card) return [...inner, muted("The catalogue has no card of this method.")];
    const listed = (title, items) => (items.length ? [h("h3", {}, title), h("ul", {}, items.map((each) => h("li", {}, each)))] : []);
    return [...inner, h("h3", {}, "The card"), h("p", {}, card.title + ". " + card.summary), h("pre", { class: "formula" }, card.formula),
      scrolled(heads("setting", "default", "source"), h("tbody", {}, card.settings.map((each) => h("tr", {}, h("th", { scope: "row" }, each.name), cell(each.default, "value"), cell(each.source))))),
      ...listed("Differs from the paper", card.differs), ...listed("Reduces to", card.reduces), ...listed("Papers", card.papers.map((each) => each.title + " (" + each.year + ")" + (each.arxiv ? ", arXiv:" + each.arxiv : "")))];
  },
};

function matcher(pattern) {
  try {
    const made = new RegExp(pattern, "i");
    return (text) => made.test(text);
  } catch {
    return (text) => text.includes(pattern);
  }
}

function watch(element, then) {
  const observer = new IntersectionObserver((found) => { if (found.some((each) => each.isIntersecting)) { observer.disconnect(); then(); } }, { rootMargin: "600px" });
  observer.observe(element);
}

function drawn(curve, alone) {
  const box = h("div");
  box.innerHTML = curve.figure; // the server escapes what is in a figure, and the page's policy runs no other script
  const figure = box.firstElementChild;
  if (!figure) return h("figure", { class: "chart" }, h("h3", {}, curve.metric), muted("no finite value"));
  figure.querySelector("h3").replaceChildren(link(curve.metric, "curves", { ...place.query, metric: curve.metric }), curve.unit ? h("span", { class: "muted" }, " " + curve.unit) : "");
  if (alone) figure.querySelector("details").open = true;
  follow(figure);
  return figure;
}

// ---- tokens

const TINTS = [
  { name: "advantage", words: "advantage", column: "advantage", tint: (value, most) => [value > 0 ? "up" : "down", Math.abs(value) / most], ends: ["pushed down", "pushed up"] },
  { name: "probability", words: "probability", column: "behavior_logp", tint: (value) => ["odd", 1 - Math.exp(Math.min(value, 0))], ends: ["certain", "improbable"] },
  { name: "entropy", words: "entropy", column: "entropy", tint: (value, most) => ["ent", value / most], ends: ["0 nats", "highest"] },
  { name: "ratio", words: "log π/π_ref", column: "log_ratio", tint: (value, most) => [value > 0 ? "up" : "down", Math.abs(value) / most], ends: ["less likely than under the reference", "more likely"] },
  { name: "moved", words: "π/π_old at the update", column: "ratio", tint: (value) => [value > 1 ? "up" : "down", Math.abs(Math.log(Math.max(value, 1e-9))) / 0.4], ends: ["less likely than when sampled", "more likely"] },
  { name: "clip", words: "held back by a clip or gate", column: "held", tint: (value) => ["odd", value], ends: ["pushed", "held back: no gradient"] },
  { name: "weight", words: "weight in the loss", column: "weight", tint: (value, most) => ["ent", Math.abs(value) / most], ends: ["0", "largest"] },
  { name: "push", words: "push: -dLoss/dlog π", column: "push", tint: (value, most) => [value > 0 ? "up" : "down", Math.abs(value) / most], ends: ["made less likely", "made more likely"] },
  { name: "mask", words: "trained on", column: "mask", tint: (value) => ["up", value ? 0.5 : 0], ends: ["not trained on", "trained on"] },
  { name: "turn", words: "turn", column: "turn", tint: (value) => ["ent", value < 0 ? 0 : value % 2 ? 0.7 : 0.25], ends: ["even", "odd"] },
  { name: "version", words: "version of the weights", column: "version", of: "version", tint: (value, most) => ["ent", value / most], ends: ["first", "newest"] },
];

const verdictOf = (right) => h("span", { class: "verdict " + (right ? "right" : "wrong") }, right ? "✓" : "✗");

function pairNote(pair) {
  const each = Object.entries(pair.scores).map(([name, value]) => name + " " + short(value));
  return h("p", { class: "muted" }, "A pair, the better completion first", pair.log_ratio === null ? "" : ": margin " + short(pair.log_ratio) + " nats of log π/π_ref as the step began",
    pair.score === null ? "" : ": margin of scores " + short(pair.score) + (each.length ? " (" + each.join(", ") + ")" : "") + ", ", pair.right === null ? "" : verdictOf(pair.right), pair.right === null ? "" : pair.right ? " the model has it right" : " the model has it wrong", ".");
}

function legend(colour, strongest) {
  const sample = colour.name === "probability" ? [0, -20] : ["advantage", "ratio", "push"].includes(colour.name) ? [-strongest, strongest] : colour.name === "moved" ? [Math.exp(-0.4), Math.exp(0.4)] : colour.name === "clip" ? [0, 1] : colour.name === "turn" ? [0, 1] : colour.name === "mask" ? [0, 1] : [0, strongest];
  return h("p", { class: "muted" }, sample.map((value, i) => { const made = h("span", { class: "tone" }, colour.ends[i]); paint(made, colour, value, strongest); return made; }));
}

function paint(element, colour, value, strongest) {
  const [tone, strength] = colour.tint(value, strongest);
  if (strength > 0.01) element.style.background = "rgba(var(--" + tone + "), " + Math.min(0.55, 0.55 * strength).toFixed(3) + ")";
}

function told(row, columns, colour, strongest) {
  if (!row.tokens) return h("pre", {}, row.completion || "");
  const which = colour ? 1 + columns.indexOf(colour.column) : 0, mask = 1 + columns.indexOf("mask");
  const text = h("pre", {});
  for (const token of row.tokens) {
    const made = h("span", { class: mask && token[mask] === 0 ? "t outside" : "t" }, token[0].replaceAll("\n", "⏎\n"));
    if (which && token[which] !== null) paint(made, colour, token[which], strongest);
    made.dataset.n = JSON.stringify(token.slice(1));
    text.append(made);
  }
  text.dataset.columns = JSON.stringify(columns);
  return h("div", {}, text, row.turns.length ? h("details", {}, h("summary", {}, row.turns.length + " turns"), row.turns.map(turnOf)) : "");
}

const turnOf = (turn) => h("div", { class: "episode" }, h("p", { class: "turn" }, h("b", {}, "turn " + (turn.number + 1)), " " + [turn.state ? "state " + turn.state : "", turn.reward === null ? "" : "reward " + short(turn.reward), turn.valid ? "" : "INVALID"].filter(Boolean).join(" · ")),
  h("pre", { class: "said" }, turn.action || ""), turn.seen ? h("pre", { class: "seen" }, turn.seen) : "");

function facts(row, name, ranked, side) {
  const words = [row.agent, row.reward === null ? "no reward" : "reward " + short(row.reward), row.score === null ? "" : "score " + short(row.score), ...Object.entries(row.scores).map(([key, value]) => key + " " + short(value)), ...Object.entries(row.components).map(([key, value]) => key + " " + short(value)), row.advantage === null ? "not trained on" : ranked ? "" : "advantage " + short(row.advantage),
    ranked || row.pull === null ? "" : "pull " + percent(row.pull), row.gradient === null || row.gradient === undefined ? "" : "gradient " + percent(row.gradient), row.caller !== null && row.caller >= 0 ? "row " + row.row + ", called by row " + row.caller : "", sized(name, row.length), row.ended.replaceAll("_", " "), row.problem].filter(Boolean);
  const mark = side ? h("b", {}, side + " ") : row.correct === null ? "" : h("span", { class: "verdict " + (row.correct ? "right" : "wrong") }, row.correct ? "✓ right " : "✗ wrong ");
  return h("p", {}, mark, h("span", { class: "muted" }, "#" + figures(row.sample) + " · " + words.join(" · ")), !row.calls ? "" : h("span", {}, " · ", link("calls of the episode", "calls", { run: name, step: row.step, prompt_id: row.prompt_id, sample: row.sample })));
}

// ---- calls of an episode: columns by depth, a line from each row to the row that called it

const BOX = { width: 190, height: 52, right: 60, below: 14 };

function placed(rows) {
  const under = (caller) => rows.filter((row) => row.caller === caller), spots = new Map();
  let line = 0;
  const put = (row, depth) => {
    if (spots.has(row.row)) return;
    spots.set(row.row, { depth, line });
    const inner = under(row.row);
    inner.forEach((each) => put(each, depth + 1));
    if (!inner.length) line += 1;
  };
  under(null).forEach((row) => put(row, 0));
  rows.forEach((row) => put(row, 0)); // rows that call each other in a circle have no first one
  return spots;
}

function callGraph(name, rows, open) {
  const spots = placed(rows), at = (row) => { const spot = spots.get(row); return [spot.depth * (BOX.width + BOX.right) + 1, spot.line * (BOX.height + BOX.below) + 1]; };
  const width = Math.max(...[...spots.values()].map((each) => each.depth + 1)) * (BOX.width + BOX.right), height = Math.max(...[...spots.values()].map((each) => each.line + 1)) * (BOX.height + BOX.below);
  const svg = (tag, attributes, ...inside) => { const made = document.createElementNS("http://www.w3.org/2000/svg", tag); for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value); made.append(...inside); return made; };
  const lines = rows.filter((row) => row.caller !== null).map((row) => { const [x, y] = at(row.row), [u, v] = at(row.caller), from = u + BOX.width, half = BOX.height / 2, mid = (from + x) / 2; return svg("path", { class: "call", d: "M" + from + " " + (v + half) + "C" + mid + " " + (v + half) + " " + mid + " " + (y + half) + " " + x + " " + (y + half) }); });
  const boxes = rows.map((row) => { const [x, y] = at(row.row), words = [(row.agent ? row.agent + " · " : "") + "row " + row.row, (row.reward === null ? "no reward" : "reward " + short(row.reward)) + " · " + sized(name, row.length)];
    return svg("a", { href: open(row), "aria-label": words.join(", ") + (row.caller === null ? "" : ", called by row " + row.caller) }, svg("rect", { x, y, width: BOX.width, height: BOX.height, rx: 6 }), ...words.map((each, i) => svg("text", { x: x + 10, y: y + 21 + 19 * i, class: i ? "small" : "" }, each))); });
  return svg("svg", { class: "calls", width, height, viewBox: "0 0 " + width + " " + height, role: "group", "aria-label": "calls of the episode" }, ...lines, ...boxes);
}

view.addEventListener("pointerover", (event) => {
  const numbers = event.target.dataset && event.target.dataset.n;
  if (numbers === undefined) { if (!event.target.closest("svg")) tip.hidden = true; return; }
  const columns = JSON.parse(event.target.parentElement.dataset.columns);
  show(JSON.parse(numbers).map((value, i) => (value === null ? "" : columns[i].replace("behavior_logp", "log-prob").replace("log_ratio", "log π/π_ref").replace(/^ratio$/, "π/π_old").replace("held", "held back") + "  " + short(value))).filter(Boolean).join("\n") || "no numbers stored", event);
});
view.addEventListener("pointerleave", () => { tip.hidden = true; });

// ---- drawing, keys, and runs that still train

const gone = () => (place.query.run || []).filter((name) => !lines.some((each) => each.name === name));

function list(runs) {
  lines = runs;
  seen = JSON.stringify(runs.map(({ age, ...each }) => each));
}

async function draw() {
  const turn = ++drawing, before = place;
  place = read();
  if (!VIEWS[place.tab]) place.tab = "runs";
  tip.hidden = true;
  const waiting = setTimeout(() => { said.textContent = "Reading …"; }, PATIENCE);
  try {
    if (!lines.length || place.tab === "runs" || gone().length) list((await ask("runs", {})).runs);
    if (gone().length && place.tab !== "runs") throw new Error("There is no run " + gone().join(", ") + " here, or no longer. Those that there are stand under Runs.");
    const inside = await VIEWS[place.tab]();
    if (turn !== drawing) return;
    const active = document.activeElement, name = active && view.contains(active) ? active.name || active.id : "";
    view.replaceChildren(...inside.filter((each) => each !== ""));
    const again = name && (view.querySelector('[name="' + name + '"]') || document.getElementById(name));
    if (again) again.focus();
    else if (before && before.tab !== place.tab) view.focus({ preventScroll: true });
    const at = view.querySelector(".at");
    if (at) at.scrollIntoView({ block: "nearest" });
    said.textContent = "";
  } catch (error) {
    if (turn !== drawing) return;
    said.textContent = "";
    view.replaceChildren(h("p", { class: "banner" }, error.message));
  } finally {
    clearTimeout(waiting);
  }
  marks();
}

function marks() {
  const picked = (place.query.run || []).filter((each) => lines.some((line) => line.name === each)), shared = { run: picked };
  for (const tab of document.querySelectorAll("nav a")) {
    const here = tab.dataset.tab === place.tab || (tab.dataset.tab === "groups" && place.tab === "group") || (tab.dataset.tab === "rows" && place.tab === "calls");
    here ? tab.setAttribute("aria-current", "page") : tab.removeAttribute("aria-current");
    tab.href = address(tab.dataset.tab, shared);
  }
  document.getElementById("shown").textContent = picked.length ? picked.join(" · ") : lines.length + (lines.length === 1 ? " run" : " runs");
  document.title = "grouprl · " + place.tab + (picked.length === 1 ? " · " + picked[0] : "");
}

const KEYS = [["1 … 7", "the tabs"], ["/", "search"], ["j  k", "next, previous row"], ["Enter", "open the row's group"], ["n  p", "next, previous page or group"], ["c", "colour tokens by the next number"], ["b", "back to the rollouts"], ["?", "these keys"]];
keys.append(h("table", {}, h("tbody", {}, KEYS.map(([key, words]) => h("tr", {}, h("th", { scope: "row" }, h("kbd", {}, key)), h("td", {}, words))))), h("button", { type: "button", onclick: () => keys.close() }, "close"));

function step(by) {
  const rows = view.querySelectorAll(".list tbody tr");
  if (place.tab !== "rows" || !rows.length) return;
  const now = [...rows].findIndex((each) => each.classList.contains("at")), next = Math.max(0, Math.min(rows.length - 1, now + by));
  if (now >= 0) rows[now].classList.remove("at");
  rows[next].classList.add("at");
  rows[next].scrollIntoView({ block: "nearest" });
  said.textContent = rows[next].innerText.slice(0, 200);
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName)) return;
  const press = (id) => { const found = document.getElementById(id); if (found && !found.disabled) found.click(); };
  const tabs = document.querySelectorAll("nav a"), colour = document.getElementById("colour"), at = view.querySelector("tr.at a");
  if (event.key >= "1" && event.key <= String(tabs.length)) tabs[Number(event.key) - 1].click();
  else if (event.key === "/") { const found = view.querySelector("input[type=search]"); if (found) { event.preventDefault(); found.focus(); } }
  else if (event.key === "j") step(1);
  else if (event.key === "k") step(-1);
  else if (event.key === "Enter" && at && [document.body, view].includes(event.target)) at.click();
  else if (event.key === "n") press("on");
  else if (event.key === "p") press("back");
  else if (event.key === "c" && colour) go({ colour: colour.options[(colour.selectedIndex + 1) % colour.options.length].value });
  else if (event.key === "b" && place.tab === "group") location.hash = address("rows", { run: run(), step: one("step") });
  else if (event.key === "?") keys.showModal();
});

async function refresh() {
  try {
    const { runs } = await ask("runs", {}), before = seen;
    list(runs);
    if (before && before !== seen) {
      const busy = ["INPUT", "SELECT"].includes(document.activeElement.tagName);
      if (["runs", "curves", "findings"].includes(place.tab) && !busy) await draw();
      else said.textContent = "The runs have gone on: reload to see the newest.";
    }
  } catch (error) {
    said.textContent = "The server does not answer: " + error.message;
  }
}

window.addEventListener("hashchange", draw);
draw();
if (!stored) setInterval(refresh, LIVE_SECONDS * 1000);
