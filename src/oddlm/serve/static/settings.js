// The settings of a run: a form, and the same in the address (`#n=8&alpha=8&...`), so that a link says everything.
"use strict";

oddlm.Settings = class {
  static NUMBERS = ["n", "alpha", "temperature", "steps", "length", "seed", "block_length"];
  static WORDS = ["prompt", "task", "problem", "objective", "eos", "policy", "feature"];

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
      temperature: this.range("temperature", 0, 2, 0.05),
      steps: this.range("steps", 1, limits.max_steps, 1),
      length: this.range("length", 1, limits.max_length, 1),
      objective: this.choice(card.names.objective.filter((name) => name !== "none")),
      seed: el("input", { id: "set-seed", type: "number", min: 0, max: 2 ** 31, step: 1, required: true }),
      eos: this.choice(["free", "late", "never"]),
      policy: this.choice(card.names.policy),
      feature: this.choice(card.names.feature),
      block_length: el("input", { id: "set-block_length", type: "number", min: 1, max: limits.max_length, step: 1 }),
    };
    for (const name of ["task", "objective", "eos", "policy", "feature"]) this.fields[name].id = `set-${name}`;
    this.button = el("button", { type: "submit", class: "main" }, "Generate");
    this.form = el("form", { novalidate: true, onsubmit: (event) => { event.preventDefault(); generate(); } },
      el("h2", {}, "Try your own"),
      this.row("task", "Problem from"), this.row("problem", "Problem"), this.row("prompt", "Prompt"),
      this.row("n", "Samples (n)"), this.row("alpha", "Push (alpha)"), this.row("temperature", "Temperature"),
      this.row("steps", "Steps"), this.row("length", "Length in tokens"), this.row("objective", "Objective"), this.row("seed", "Seed"),
      el("details", {}, el("summary", {}, "More settings"),
        this.row("eos", "End tokens"), this.row("policy", "Which positions first"), this.row("feature", "What is compared"),
        this.row("block_length", "Block length")),
      this.button,
      el("p", { class: "quiet" }, `Model: ${oddlm.visible(card.id)}. Every run is drawn twice with the same noise: plain, and pushed apart.`));
    place.replaceChildren(this.form);
    this.fields.task.addEventListener("change", () => this.pickTask());
    this.fields.problem.addEventListener("change", () => this.pickProblem());
    this.fields.prompt.addEventListener("input", () => this.detach());
    this.fields.length.addEventListener("input", () => this.fit());
    this.set({ ...card.defaults, n: 8, steps: card.defaults.steps || card.defaults.length, task: "", prompt: "", seed: 0 });
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
    const { unknown } = this;
    this.set({ length, steps: task.steps || Math.ceil(length / 2), eos: task.code ? "free" : "late" });
    this.unknown = unknown;
    this.pickProblem();
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

  // What a choice does not have is noted in `unknown`, and its first takes its place.
  set(values) {
    this.unknown = [];
    for (const [name, value] of Object.entries(values)) {
      const field = this.fields[name];
      if (!field || name === "problem") continue;
      if (name === "length") { field.value = value; this.fit(); }
      const plain = value !== null && typeof value === "object" ? value.name : value; // {"name": "odd", ...}: its options stay the server's
      field.value = plain === null || plain === undefined ? "" : plain;
      if (field.selectedIndex === -1) {
        this.unknown.push(`${name}=${plain}`);
        field.selectedIndex = 0;
      }
      this.tell(name);
    }
    oddlm.byId("row-problem").hidden = !this.fields.task.value;
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

  // Of the request for the diverse run; the plain one differs in alpha alone.
  body() {
    const { task, problem, length, ...rest } = this.get();
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
