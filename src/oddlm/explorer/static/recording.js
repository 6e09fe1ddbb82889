// Runs as the page holds them, and recordings: a plain and a diverse run of the same prompt with the same noise.
"use strict";

oddlm.recordings = []; // those that came with the page
oddlm.register = (recording) => oddlm.recordings.push(recording);

// One run, made of the messages of /v1/denoise as they come.
oddlm.Run = class {
  constructor(start) {
    oddlm.check.start(start, "start");
    this.start = start;
    this.n = start.n;
    this.length = start.params.length;
    this.total = start.params.steps || this.length;
    this.steps = [];
    this.end = null;
    this.verdicts = null;
    this.error = null;
    this.pieces = new Map();
    this.ends = new Set(start.end_ids);
    this.written = Array.from({ length: this.n }, () => new Array(this.length).fill(null)); // {step, spot} where there is a token
    this.waiting = []; // by step: row -> position -> spot that plain sampling alone would write
  }

  add(frame) {
    oddlm.check.step(frame, "step");
    if (frame.samples.length !== this.n) throw new Error(`step ${frame.step} has ${frame.samples.length} samples, not ${this.n}`);
    const place = this.steps.length, expected = place ? this.steps[place - 1].step + 1 : 0;
    // A model without masks skips the steps that were left when every sample had finished its block.
    const skips = this.start.mask_id < 0 && frame.step > expected;
    if (frame.step !== expected && !skips) throw new Error(`expected step ${expected}, found step ${frame.step}`);
    const waiting = new Map();
    frame.samples.forEach((sample, row) => {
      for (const spot of sample.spots) {
        if (spot.position >= this.length) throw new Error(`step ${frame.step} writes at ${spot.position}, past the end`);
        if (spot.by !== "plain") this.written[row][spot.position] = { step: place, spot };
        else if (waiting.has(row)) waiting.get(row).set(spot.position, spot);
        else waiting.set(row, new Map([[spot.position, spot]]));
      }
    });
    for (const [token, piece] of Object.entries(frame.pieces)) this.pieces.set(Number(token), piece);
    this.waiting.push(waiting);
    this.steps.push(frame);
    this.total = Math.max(frame.total, this.steps.length);
  }

  finish(end) {
    oddlm.check.end(end, "end");
    if (end.samples.length !== this.n) throw new Error(`the end has ${end.samples.length} samples, not ${this.n}`);
    this.end = end;
    this.total = this.steps.length;
  }

  judge(verdicts) {
    oddlm.check.verdicts(verdicts, "verdicts");
    if (verdicts.length !== this.n) throw new Error(`there are ${verdicts.length} verdicts for ${this.n} samples`);
    this.verdicts = verdicts;
  }

  // What stands at a position after so many steps: {step, spot}, or null where it is still masked.
  at(row, position, steps) {
    const found = this.written[row][position];
    return found !== null && found.step < steps ? found : null;
  }

  // What plain sampling alone would have written in the step that was the last of `steps`.
  awaited(row, position, steps) {
    const rows = this.waiting[Math.min(steps, this.steps.length) - 1];
    const spot = rows && rows.get(row) && rows.get(row).get(position);
    return spot || null;
  }

  // Did the fork choose what this step wrote?
  forks(step) {
    return step === 0 && this.start.params.fork === true;
  }

  piece(token) {
    if (token === this.start.mask_id) return "·";
    if (this.ends.has(token)) return "∎";
    return this.pieces.has(token) ? this.pieces.get(token) : `⟨${token}⟩`;
  }

  get different() { return new Set(this.end ? this.end.samples.map((sample) => sample.text) : []).size; }
  get right() { return this.verdicts ? this.verdicts.filter((verdict) => verdict.correct).length : null; }

  // Samples with the same text, in the order of their first; each alone while the run goes on.
  groups() {
    const rows = Array.from({ length: this.n }, (_, row) => row);
    if (!this.end) return rows.map((row) => [row]);
    const byText = new Map();
    for (const row of rows) {
      const text = this.end.samples[row].text;
      if (byText.has(text)) byText.get(text).push(row);
      else byText.set(text, [row]);
    }
    return [...byText.values()];
  }

  // Share of tokens that two samples have in common, of the positions where one of them has text.
  similarity(a, b, steps) {
    let same = 0, all = 0;
    for (let position = 0; position < this.length; position++) {
      const one = this.at(a, position, steps), other = this.at(b, position, steps);
      const first = one ? one.spot.token : null, second = other ? other.spot.token : null;
      const blank = (token) => token === null || this.ends.has(token);
      if (blank(first) && blank(second)) continue;
      all++;
      same += first === second;
    }
    return all ? same / all : 1;
  }

  stored() {
    return { start: this.start, steps: this.steps, end: this.end, verdicts: this.verdicts, error: this.error };
  }

  static restored(content) {
    const run = new oddlm.Run(content.start);
    for (const frame of content.steps) run.add(frame);
    if (content.end) run.finish(content.end);
    if (content.verdicts) run.judge(content.verdicts);
    run.error = content.error || null;
    return run;
  }
};

oddlm.recording = (() => {
  const FORMAT = "oddlm-recording", VERSION = 1;

  // {title, task, plain, diverse} of a recording; an Error in words if it is none.
  function open(content) {
    if (typeof content !== "object" || content === null || content.format !== FORMAT) {
      throw new Error("this is not an oddlm recording; `Download` and `oddlm record` write them");
    }
    if (content.version !== VERSION) {
      throw new Error(`this recording has version ${JSON.stringify(content.version)}, but this page reads version ${VERSION}: ` +
        "open it with the version of oddlm that wrote it, or record it again");
    }
    oddlm.check.recording(content, "recording");
    return {
      title: content.title, task: content.task || null, madeBy: content.oddlm,
      plain: oddlm.Run.restored(content.plain), diverse: oddlm.Run.restored(content.diverse),
    };
  }

  function parse(text) {
    let content;
    try { content = JSON.parse(text); } catch (error) {
      throw new Error(`this file is not valid JSON (${error.message}); it may be truncated`);
    }
    return open(content);
  }

  function stored(shown, madeBy) {
    return {
      format: FORMAT, version: VERSION, oddlm: madeBy, title: shown.title, task: shown.task,
      plain: shown.plain.stored(), diverse: shown.diverse.stored(),
    };
  }

  return { open, parse, stored };
})();
