// Is something that came from outside (a file, a server) what it should be? Errors say where it is not.
"use strict";

oddlm.check = (() => {
  const MOST_CELLS = 1 << 22; // positions of all samples together

  function fail(where, wanted) {
    throw new Error(`${where} is not ${wanted}`);
  }

  const whole = (least, most) => (value, where) => {
    if (!Number.isInteger(value) || value < least || value > most) fail(where, `a whole number from ${least} to ${most}`);
  };
  const number = (value, where) => { if (typeof value !== "number" || !Number.isFinite(value)) fail(where, "a number"); };
  const text = (value, where) => { if (typeof value !== "string") fail(where, "a string"); };
  const flag = (value, where) => { if (typeof value !== "boolean") fail(where, "true or false"); };
  const among = (...known) => (value, where) => { if (!known.includes(value)) fail(where, `one of ${known.join(", ")}`); };
  const maybe = (kind) => (value, where) => { if (value !== null && value !== undefined) kind(value, where); };
  const list = (kind, most = 1 << 17) => (value, where) => {
    if (!Array.isArray(value) || value.length > most) fail(where, "a list");
    value.forEach((item, i) => kind(item, `${where}[${i}]`));
  };
  const table = (kind) => (value, where) => {
    if (typeof value !== "object" || value === null || Array.isArray(value)) fail(where, "an object");
    for (const [name, item] of Object.entries(value)) kind(item, `${where}.${name}`);
  };
  const shape = (fields) => (value, where) => {
    if (typeof value !== "object" || value === null || Array.isArray(value)) fail(where, "an object");
    for (const [name, kind] of Object.entries(fields)) kind(value[name], `${where}.${name}`);
  };

  const token = whole(0, 2 ** 31);
  const likely = shape({ token, probability: number, base_probability: number });
  const spot = shape({
    position: whole(0, MOST_CELLS), by: among("both", "pushed", "plain"), token, probability: number, base_probability: number,
    plain_token: token, plain_probability: number, plain_base_probability: number, top: list(likely, 100),
  });
  const anything = () => {};
  const sizes = shape({ n: whole(1, 4096), params: shape({ length: whole(1, 1 << 16), seed: number }) });

  const start = (value, where) => {
    shape({ model: text, prompt: text, mask_id: whole(-1, 2 ** 31), end_ids: list(token), params: table(anything) })(value, where);
    sizes(value, where);
    if (value.n * value.params.length > MOST_CELLS) fail(`${where}.n times length`, `at most ${MOST_CELLS}`);
  };
  const step = shape({
    step: whole(0, 1 << 20), total: whole(1, 1 << 20), pieces: table(text),
    samples: list(shape({ spots: list(spot), mean_entropy: number, mean_force: number })),
  });
  const end = shape({
    samples: list(shape({ index: whole(0, 1 << 20), text, finish_reason: text })),
    oddlm: shape({ nfe: number, diversity: list(table(number)) }),
  });
  const verdicts = list(shape({ correct: maybe(flag), answer: maybe(text), detail: text }));
  const run = shape({ start, steps: list(step), end: maybe(end), verdicts: maybe(verdicts), error: maybe(text) });
  const recording = shape({
    oddlm: text, title: text, task: maybe(shape({ name: text, problem: text, question: text })), plain: run, diverse: run,
  });
  const problems = shape({ total: number, data: list(shape({ id: text, prompt: text, question: text })) });

  return { start, step, end, verdicts, recording, problems };
})();
