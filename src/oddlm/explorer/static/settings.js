// The settings of a run: a form, and the same in the address (`#n=8&alpha=8&...`), so that a link says everything.
"use strict";

oddlm.Settings = class {
  static NUMBERS = ["n", "alpha", "alpha_end", "temperature", "steps", "length", "seed", "block_length"];
  static WORDS = ["prompt", "task", "problem", "objective", "eos", "policy", "feature", "fork", "arithmetic"];
  static NAMED = ["objective", "policy", "feature"]; // a name, or a name with options
  static PUSH = ["objective", "alpha", "alpha_end", "fork", "arithmetic"]; // what a preset stands for

  constructor(place, card, tasks, generate) {
    const { el } = oddlm;
    this.card = card;
    this.tasks = tasks;
    this.problems = new Map(); // by task: its problems
    const limits = card.limits;
    const most = Math.min(limits.max_n, limits.max_rows, 64);
    this.fields = {
      task: this.choice(["", ...tasks.map((task) => task.name)], (name) => name || "my own prompt"),
      problem: el("select", { id: "set-problem" }),
      prompt: el("textarea", { id: "set-prompt", rows: 3, maxlength: limits.max_prompt, spellcheck: "false" }),
      n: this.range("n", 1, most, 1),
      alpha: this.range("alpha", 0, 128, 0.5),
      alpha_end: this.range("alpha_end", 0.05, 1, 0.05),
      temperature: this.range("temperature", 0, 2, 0.05),
      steps: this.range("steps", 1, limits.max_steps, 1),
      length: this.range("length", 1, limits.max_length, 1),
      preset: this.choice([...Object.keys(card.presets), ""], (name) => name || "custom"),
      objective: this.choice(card.names.objective.filter((name) => name !== "none")),
      seed: el("input", { id: "set-seed", type: "number", min: 0, max: 2 ** 31, step: 1, required: true }),
      eos: this.choice(["free", "late", "never"]),
      policy: this.choice(card.names.policy),
      feature: this.choice(card.names.feature),
      fork: this.choice(["auto", "yes", "no"]),
      arithmetic: this.choice(["exact", "published"]),
      block_length: el("input", { id: "set-block_length", type: "number", min: 1, max: limits.max_length, step: 1 }),
    };
    for (const name of ["task", "preset", "objective", "eos", "policy", "feature", "fork", "arithmetic"]) this.fields[name].id = `set-${name}`;
    this.button = el("button", { type: "submit", class: "main" }, "Generate");
    this.form = el("form", { novalidate: true, onsubmit: (event) => { event.preventDefault(); generate(); } },
      el("h2", {}, "Try your own"),
      this.row("task", "Task"), this.row("problem", "Problem"), this.row("prompt", "Prompt"),
      this.row("n", "Samples (n)"), this.row("preset", "Preset"), this.hint(), this.row("alpha", "Push strength (alpha)"),
      this.row("alpha_end", "Share of steps with a push (alpha_end)"),
      this.row("temperature", "Temperature"), this.row("steps", "Steps"), this.row("length", "Length (tokens)"),
      this.row("objective", "Objective"), this.row("seed", "Seed"),
      el("details", {}, el("summary", {}, "More settings"),
        this.row("fork", "Distinct starts (fork)"), this.row("eos", "End tokens (eos)"), this.row("policy", "Positions to write first (policy)"),
        this.row("feature", "What is compared (feature)"), this.row("arithmetic", "Arithmetic of the push"),
        this.row("block_length", "Block length")),
      this.button,
      el("p", { class: "quiet" }, `Model: ${oddlm.visible(card.id)}. Every run is drawn twice with the same noise: once plain, once pushed apart.`));
    place.replaceChildren(this.form);
    this.fields.task.addEventListener("change", () => this.pickTask());
    this.fields.problem.addEventListener("change", () => this.pickProblem());
    this.fields.prompt.addEventListener("input", () => this.detach());
    this.fields.length.addEventListener("input", () => this.fit());
    this.fields.preset.addEventListener("change", () => this.pickPreset());
    for (const name of oddlm.Settings.PUSH) this.fields[name].addEventListener("input", () => this.nameThePreset());
    const fork = { true: "yes", false: "no" }[card.given.fork] || "auto";
    this.usual = { ...this.named(card.defaults), fork, n: 8, task: "", prompt: "", seed: 0 };
    const decided = oddlm.Settings.PUSH.some((name) => name in card.given);
    const { objective, alpha, alpha_end, arithmetic } = this.usual;
    this.push = decided ? { objective, alpha, alpha_end, fork, arithmetic } : {}; // what the operator wants tried
    this.set(this.usual);
  }

  choice(names, say = (name) => name) {
    return oddlm.el("select", {}, names.map((name) => oddlm.el("option", { value: name }, oddlm.visible(say(name)))));
  }

  range(name, min, max, step) {
    const input = oddlm.el("input", { id: `set-${name}`, type: "range", min, max, step });
    input.addEventListener("input", () => this.tell(name));
    return input;
  }

  row(name, words) {
    const field = this.fields[name];
    const value = field.type === "range" ? oddlm.el("output", { for: field.id, id: `say-${name}` }) : null;
    return oddlm.el("div", { class: "field", id: `row-${name}` }, oddlm.el("label", { for: field.id }, words), value, field);
  }

  // What the chosen preset is for, below its menu.
  hint() {
    this.fields.preset.setAttribute("aria-describedby", "preset-hint");
    return oddlm.el("p", { class: "quiet", id: "preset-hint" });
  }

  tell(name) {
    const place = oddlm.byId(`say-${name}`);
    if (place) place.textContent = this.fields[name].value;
  }

  // A step writes at least one token.
  fit() {
    const steps = this.fields.steps;
    steps.max = Math.min(this.card.limits.max_steps, Number(this.fields.length.value));
    this.tell("steps");
  }

  detach() {
    this.fields.task.value = "";
    oddlm.byId("row-problem").hidden = true;
  }

  async pickTask(problem) {
    const name = this.fields.task.value;
    oddlm.byId("row-problem").hidden = !name;
    if (!name) return;
    try {
      if (!this.problems.has(name)) {
        this.fields.problem.replaceChildren(oddlm.el("option", {}, "loading …"));
        this.button.disabled = true;
        const found = await oddlm.server.json(`v1/tasks/${encodeURIComponent(name)}/problems?limit=200`);
        oddlm.check.problems(found, "problems");
        this.problems.set(name, found.data);
      }
    } catch (error) {
      this.detach();
      oddlm.notice(error.message);
      return;
    } finally {
      this.button.disabled = false;
    }
    if (this.fields.task.value !== name) return;
    const say = (one) => oddlm.visible(one.question).replace(/\s+/g, " ").slice(0, 90);
    this.fields.problem.replaceChildren(...this.problems.get(name).map((one) => oddlm.el("option", { value: one.id }, say(one))));
    if (problem !== undefined) {
      this.fields.problem.value = problem;
      if (this.fields.problem.selectedIndex < 0) this.detach();
      return;
    }
    const task = this.tasks.find((one) => one.name === name);
    const length = Math.min(task.length, this.card.limits.max_length);
    const { unknown, moved } = this;
    this.set({ length, steps: task.steps || Math.ceil(length / 2), eos: task.code ? "free" : "late" });
    Object.assign(this, { unknown, moved });
    this.pickProblem();
  }

  // A preset sets the push; each of its settings may be changed afterwards.
  pickPreset() {
    const found = this.card.presets[this.fields.preset.value];
    if (found) this.set({ ...found.settings, fork: oddlm.Settings.forkOf(found.settings) });
    else this.nameThePreset();
  }

  // Shows which preset the settings of the push amount to.
  nameThePreset() {
    const same = (settings) => oddlm.Settings.spelled(settings.objective) === this.fields.objective.value
      && settings.alpha === Number(this.fields.alpha.value) && settings.alpha_end === Number(this.fields.alpha_end.value)
      && oddlm.Settings.forkOf(settings) === this.fields.fork.value
      && settings.arithmetic === this.fields.arithmetic.value;
    const [name, found] = Object.entries(this.card.presets).find(([, one]) => same(one.settings)) || ["", null];
    this.fields.preset.value = name;
    const hint = oddlm.byId("preset-hint");
    hint.hidden = !found;
    hint.textContent = found ? found.about.replace(/ \([^)]*\.md\)/, "") : "";
  }

  // An alpha without an end lasts for all steps, as everywhere.
  static ended(settings) {
    return "alpha" in settings ? { alpha_end: 1, ...settings } : settings;
  }

  static forkOf(settings) {
    return { true: "yes", false: "no" }[settings.fork] || "auto";
  }

  // The settings of a run as the form has them. A run says whether it forked; the form says "auto" where its preset does.
  named(given) {
    const params = oddlm.Settings.ended(given);
    const same = ({ settings }) => settings.fork === "auto" && settings.alpha === params.alpha && settings.alpha_end === params.alpha_end
      && oddlm.Settings.spelled(settings.objective) === oddlm.Settings.spelled(params.objective);
    const forked = Object.values(this.card.presets).some(same) ? "auto" : "yes";
    return { ...params, fork: params.fork === true ? forked : "no", steps: params.steps || params.length };
  }

  // {"name": "odd", "enough": 0.5} as the value of a choice, whatever the order of its options; "odd" without any.
  static spelled(value) {
    if (typeof value !== "object" || value === null) return value;
    const names = Object.keys(value).sort();
    return names.join() === "name" ? value.name : JSON.stringify(value, names);
  }

  // A choice that has its options with it, as a link writes it: an object, or null where it is none.
  static options(value) {
    try {
      const found = typeof value === "string" && value.startsWith("{") ? JSON.parse(value) : value;
      return typeof found === "object" && found !== null && typeof found.name === "string" ? found : null;
    } catch { return null; }
  }

  // Gives a menu the choice with options that it is to show, if the server has the name.
  offer(name, value) {
    const found = oddlm.Settings.options(value), text = found ? oddlm.Settings.spelled(found) : String(value), field = this.fields[name];
    const missing = ![...field.options].some((option) => option.value === text);
    if (found && missing && this.card.names[name].includes(found.name)) field.append(oddlm.el("option", { value: text }, oddlm.named(found)));
    return text;
  }

  pickProblem() {
    const found = (this.problems.get(this.fields.task.value) || []).find((one) => one.id === this.fields.problem.value);
    if (found) this.fields.prompt.value = found.prompt;
  }

  // The problem that the prompt belongs to, as a recording names it; null for a prompt of one's own.
  origin() {
    const name = this.fields.task.value;
    const found = (this.problems.get(name) || []).find((one) => one.id === this.fields.problem.value);
    return found && found.prompt === this.fields.prompt.value ? { name, problem: found.id, question: found.question } : null;
  }

  // What a choice does not have is noted in `unknown`, and its first takes its place; what a slider cannot show stands in `moved`.
  set(given) {
    this.unknown = [];
    this.moved = {};
    const values = oddlm.Settings.ended(given);
    for (const [name, value] of Object.entries(values)) {
      const field = this.fields[name];
      if (!field || name === "problem") continue;
      if (name === "length") { field.value = value; this.fit(); }
      const plain = oddlm.Settings.NAMED.includes(name) ? this.offer(name, value) : value;
      field.value = plain === null || plain === undefined ? "" : plain;
      if (field.selectedIndex === -1) {
        this.unknown.push(`${name}=${plain}`);
        field.selectedIndex = 0;
      }
      this.tell(name);
    }
    for (const [name, field] of Object.entries(this.fields)) {
      const off = field.type === "range" && name in values && Math.abs(field.value - values[name]) > 1e-9;
      if (off) this.moved[name] = `${name}=${values[name]} is now ${field.value}`;
    }
    oddlm.byId("row-problem").hidden = !this.fields.task.value;
    this.nameThePreset();
    return this.fields.task.value && "task" in values ? this.pickTask(values.problem) : null;
  }

  get() {
    const found = {};
    for (const name of oddlm.Settings.WORDS) found[name] = this.fields[name].value;
    for (const name of oddlm.Settings.NUMBERS) {
      const text = this.fields[name].value;
      if (text === "" && name === "block_length") continue;
      found[name] = Number(text);
    }
    if (!found.task) { delete found.task; delete found.problem; }
    return found;
  }

  // Of the request for the diverse run. Fork "auto" is left to the server, which knows whether there are steps to spare for it.
  body() {
    const { task, problem, length, fork, ...rest } = this.get();
    for (const name of oddlm.Settings.NAMED) rest[name] = oddlm.Settings.options(rest[name]) || rest[name];
    if (fork !== "auto") rest.fork = fork === "yes";
    return { ...rest, model: this.card.id, max_tokens: length, positions: false };
  }

  busy(yes) {
    this.button.textContent = yes ? "Stop" : "Generate";
    this.button.classList.toggle("stop", yes);
  }
};

oddlm.address = (() => {
  // Everything the address says, words and numbers; what is no number is told and left out.
  function read() {
    const found = {}, wrong = [];
    for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
      if (["view", "recording", "step", ...oddlm.Settings.WORDS, ...oddlm.Settings.NUMBERS].includes(name)) {
        const numeric = ["recording", "step", ...oddlm.Settings.NUMBERS].includes(name);
        if (numeric && (value.trim() === "" || !Number.isFinite(Number(value)))) wrong.push(`${name}=${value}`);
        else found[name] = numeric ? Number(value) : value;
      }
    }
    return { found, wrong };
  }

  function write(values) {
    const text = new URLSearchParams(Object.entries(values).filter(([, value]) => value !== null && value !== undefined)).toString();
    history.replaceState(null, "", `#${text}`);
  }

  return { read, write };
})();
