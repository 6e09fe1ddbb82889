"""`oddlm` as a model of the lm-evaluation-harness, in real runs of the harness on local data."""

import json
import math
import pickle
import sys
from functools import partial

import lm_eval.evaluator
import lm_eval.tasks
import pytest
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model, model_registry

import oddlm
from oddlm.cli import main
from oddlm.integrations.lm_eval import ChatPrompt, HarnessLM, register, run
from oddlm.models.loading.tokenizer import read_tokenizer
from oddlm.models.toy import Toy
from oddlm.spec import derived_seed
from oddlm.tasks import find_task

from ..models import published_layout as layout

COUNTDOWN = find_task("countdown")
PROBLEMS = {problem.prompt: problem for problem in COUNTDOWN.problems(limit=2)}
SHAPE = {"length": 24, "steps": 6, "eos": "late"}
N = 4


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """The harness neither reads its thousands of tasks nor describes this machine."""
    own = partial(lm_eval.tasks.TaskManager, include_defaults=False)
    monkeypatch.setattr(lm_eval.tasks, "TaskManager", own)
    monkeypatch.setattr(lm_eval.evaluator, "TaskManager", own)
    monkeypatch.setattr(lm_eval.evaluator, "add_env_info", lambda storage: None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("tasks")
    lines = [json.dumps({"question": prompt, "answer": " t7"}) for prompt in PROBLEMS]
    (found / "problems.jsonl").write_text("\n".join(lines))
    return found


@pytest.fixture
def toy_lm(toy):
    return oddlm.LM(toy, toy.tokenizer)


def task(folder, kind="generate_until", **more):
    return {
        "task": "tiny",
        "dataset_path": "json",
        "dataset_kwargs": {
            "data_files": str(folder / "problems.jsonl"),
            "cache_dir": str(folder / "cache"),
        },
        "test_split": "train",
        "output_type": kind,
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{answer}}",
        **more,
    }


def verdicts(doc, results):
    right = sum(COUNTDOWN.score(PROBLEMS[doc["question"]], text).correct for text in results[0])
    return {"pass@1": right / N, "pass@4": float(right > 0)}


PASS_AT_K = {
    "repeats": N,
    "process_results": verdicts,
    "filter_list": [{"name": "all", "filter": [{"function": "take_first_k", "k": N}]}],
    "metric_list": [
        {"metric": name, "aggregation": "mean", "higher_is_better": True}
        for name in ("pass@1", "pass@4")
    ],
}


def request(prompt="t5 t6", doc=None, kind="generate_until", **settings):
    arguments = (prompt, settings) if kind == "generate_until" else (prompt, settings["answer"])
    return Instance(kind, doc or {"question": prompt}, arguments, 0, ("tiny", 0, N))


def test_repeats_are_one_diverse_group_and_seeds_are_stated(folder):
    chat = {"doc_to_text": "{{question}}\n", "generation_kwargs": {"max_gen_toks": 24}}
    model = HarnessLM("mini", batch_size=2, alpha=8, seed=5, **SHAPE)
    found = lm_eval.simple_evaluate(model, tasks=[task(folder, **PASS_AT_K, **chat)])
    lm, solved = oddlm.load("mini"), []
    for entry in found["samples"]["tiny"]:
        prompt, settings = entry["arguments"][0]
        assert settings["seed"] == derived_seed(5, entry["doc_hash"])
        alone = lm.sample(prompt, n=N, alpha=8, seed=settings["seed"], **SHAPE)
        assert entry["resps"] == [[sample.text for sample in alone]]
        assert len({sample.text for sample in alone}) > 1
        problem = PROBLEMS[entry["doc"]["question"]]
        solved.append(any(COUNTDOWN.score(problem, one.text).correct for one in alone))
    assert len(solved) == len(PROBLEMS)
    assert found["results"]["tiny"]["pass@4,all"] == sum(solved) / len(solved)
    stated = found["config"]["oddlm"]
    assert (stated["seed"], stated["model"]) == (5, lm.info.identity)
    assert stated["params"]["tiny"]["alpha"] == 8


def test_a_documents_samples_do_not_depend_on_the_others(toy_lm):
    model = HarnessLM(toy_lm, length=6, seed=1, batch_size=2)
    one, two, three = (request(f"t{i} t6", max_gen_toks=6) for i in (5, 8, 9))
    together = model.generate_until([one] * 3 + [two] * 3 + [three] * 2)
    assert together[3:6] == HarnessLM(toy_lm, length=6, seed=1).generate_until(
        [request("t8 t6")] * 3
    )
    assert together[6:] != together[3:5]
    assert len(together) == 8


@pytest.mark.parametrize(
    ("own", "settings", "expected"),
    [
        ({}, {}, {"length": 64, "temperature": 0.5}),
        ({}, {"max_gen_toks": 9}, {"length": 9}),
        ({"length": 5}, {"max_gen_toks": 9}, {"length": 5}),
        ({"length": 12}, {"max_new_tokens": 9}, {"length": 9}),
        ({"temperature": 0.7}, {}, {"temperature": 0.7}),
        ({"temperature": 0.7}, {"do_sample": True}, {"temperature": 0.7}),
        ({"temperature": 0.7}, {"do_sample": False}, {"temperature": 0.0}),
        ({}, {"do_sample": False, "temperature": 0.9}, {"temperature": 0.0}),
        ({}, {"do_sample": True, "temperature": 0.9}, {"temperature": 0.9}),
        ({"temperature": 0}, {"do_sample": True}, {"temperature": 1.0}),
        ({"alpha": 8}, {"alpha": 4, "top_p": 0.9, "num_beams": 1}, {"alpha": 4.0, "top_p": 0.9}),
        ({"alpha": 8}, {"top_k": None}, {"alpha": 8.0, "top_k": None, "alpha_end": 1.0}),
    ],
)
def test_the_settings_of_a_task(toy_lm, own, settings, expected):
    model = HarnessLM(toy_lm, **own)
    found = model._document(request(**settings), 1).params
    assert {name: getattr(found, name) for name in expected} == expected


def test_an_overridden_temperature_is_reported_once_per_task(toy_lm, caplog):
    model = HarnessLM(toy_lm, length=2, temperature=0.7)
    model.generate_until([request(do_sample=False), request("t7", do_sample=False)])
    (record,) = caplog.records
    assert {"tiny", 0.0, 0.7} <= set(record.args)


def test_until_cuts_the_text_and_a_seed_is_taken(toy_lm):
    (whole,) = HarnessLM(toy_lm, length=8).generate_until([request(seed=3)])
    assert whole == toy_lm.sample("t5 t6", n=1, length=8, seed=3)[0].text
    words = whole.split()
    stops = ["t999", f" {words[4]}", f" {words[2]}", ""]
    (text,) = HarnessLM(toy_lm, length=8).generate_until([request(seed=3, until=stops)])
    assert text == " ".join(words[:2])
    (text,) = HarnessLM(toy_lm, length=8).generate_until([request(seed=3, until=words[1])])
    assert text == words[0] + " "


def test_a_chat_keeps_its_control_tokens(tmp_path):
    layout.write_llada(tmp_path)
    model, tokenizer = HarnessLM(str(tmp_path), length=2, device="cpu"), read_tokenizer(tmp_path)
    assert tokenizer.template.source == model.chat_template(True)
    talk = [
        {"role": "system", "content": "the inn"},
        {"role": "user", "content": "the <|eot_id|>"},
    ]
    prompt = pickle.loads(pickle.dumps(model.apply_chat_template(talk)))
    assert model._ids(prompt) == tokenizer.chat(talk)
    assert prompt.count("<|eot_id|>") == 3, "that of the user is text"
    begun = {"role": "assistant", "content": "in the"}
    continued = model.apply_chat_template([*talk, begun], add_generation_prompt=False)
    assert continued == prompt + "in the"
    assert model._ids(continued) == tokenizer.chat(talk) + tokenizer.encode("in the", whole=False)
    assert model._pair(prompt, " end") == (
        tokenizer.chat(talk),
        tokenizer.encode(" end", whole=False),
    )
    assert model._ids("the <|eot_id|>") == tokenizer.encode("the <|eot_id|>")
    with pytest.raises(ValueError, match="careful"):
        model.chat_template("careful")


def test_a_model_without_a_chat_template(toy_lm):
    with pytest.raises(ValueError, match="toy"):
        HarnessLM(toy_lm).apply_chat_template([{"role": "user", "content": "t5"}])


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"alhpa": 8}, "alhpa"),
        ({"trust_remote_code": True}, "trust_remote_code"),
        ({"policy": "best_first"}, "best_first"),
        ({"alpha": -1}, "alpha"),
    ],
)
def test_bad_arguments_are_named(given, named):
    with pytest.raises(ValueError, match=named):
        HarnessLM.create_from_arg_obj({"pretrained": "toy", **given}).generate_until([request()])


def test_bad_requests_are_named(toy_lm):
    model = HarnessLM(toy_lm, length=4)
    with pytest.raises(ValueError, match="num_beams"):
        model.generate_until([request(num_beams=4)])
    with pytest.raises(ValueError, match=r"tiny, document 0.* 1024 "):
        model.generate_until([request(), request(" ".join(["t5"] * 1024))])
    for given in ({"bound_draws": 1}, {"batch_size": 0}):
        with pytest.raises(ValueError, match=next(iter(given))):
            HarnessLM(toy_lm, length=4, **given).generate_until([request()])
    with pytest.raises(ValueError, match="alhpa"):
        HarnessLM(toy_lm, alhpa=8)
    with pytest.raises(ValueError, match="pretrained"):
        HarnessLM.create_from_arg_string("alpha=8")


def test_the_harness_cache_is_refused(toy_lm, folder, tmp_path):
    with pytest.raises(ValueError, match="--use_cache"):
        lm_eval.simple_evaluate(
            HarnessLM(toy_lm, length=2), tasks=[task(folder)], use_cache=str(tmp_path / "cache")
        )


def test_likelihood_tasks_are_refused(toy_lm, folder):
    for kind in ("loglikelihood", "loglikelihood_rolling"):
        with pytest.raises(ValueError, match=r"tiny .*bound_draws"):
            lm_eval.simple_evaluate(HarnessLM(toy_lm), tasks=[task(folder, kind)])


def test_likelihood_tasks_are_answered_by_bounds(toy_lm, folder):
    choices = {"doc_to_choice": ["t7", "t9 t5"], "doc_to_target": 0, "num_fewshot": 0}
    found = lm_eval.simple_evaluate(
        HarnessLM(toy_lm, bound_draws=4, seed=2),
        tasks=[task(folder, "multiple_choice", **choices)],
    )
    for entry in found["samples"]["tiny"]:
        seed = derived_seed(2, entry["doc_hash"])
        for (prompt, answer), [(value, greedy)] in zip(
            entry["arguments"], entry["resps"], strict=True
        ):
            bound = toy_lm.loglikelihood_bound(prompt, answer, draws=4, seed=seed)
            assert (value, greedy) == (bound.value, bound.is_greedy)
    assert found["config"]["oddlm"]["bound_draws"] == 4


def test_the_bound_of_a_text_longer_than_the_context():
    model = Toy(vocab_size=60)
    model.context = 5
    lm = oddlm.LM(model, model.tokenizer)
    ids = [5, 6, 7, 8, 9, 10]
    text = Instance("loglikelihood_rolling", {"a": 1}, (lm.tokenizer.decode(ids),), 0, ("x", 0, 1))
    (found,) = HarnessLM(lm, bound_draws=3).loglikelihood_rolling([text])
    seed = HarnessLM(lm)._seed(text)
    parts = [(model.EOS, ids[:4]), (ids[1:4], ids[4:])]
    total = 0.0
    for before, part in parts:
        context = [before] if isinstance(before, int) else before
        total += lm.loglikelihood_bound(context, part, draws=3, seed=seed).value
    assert math.isclose(found, total)


def test_what_follows_a_prompt_is_encoded_with_it():
    lm = oddlm.load("mini")
    model, encode = HarnessLM(lm), lm.tokenizer.encode
    assert model._pair("12 ", "34") == (encode("12"), encode(" 34"))
    assert model._pair("", "34") == ([lm.info.end_ids[0]], encode("34"))
    assert model._pair("12", "34") == (encode("12"), encode("34")), "12 is not a part of 1234"


def test_registering_keeps_the_other_models(monkeypatch):
    monkeypatch.setattr(model_registry, "_objs", {})
    monkeypatch.delitem(sys.modules, "lm_eval.models", raising=False)
    register()
    register()
    assert get_model("oddlm") is HarnessLM
    assert get_model("dummy").__name__ == "DummyLM"
    assert get_model("hf").__name__ == "HFLM"


def test_the_command_line(folder, tmp_path, capsys):
    path = tmp_path / "tiny.yaml"
    path.write_text(json.dumps(task(folder, repeats=2, generation_kwargs={"max_gen_toks": 6})))
    run(
        f"--model oddlm --model_args pretrained=toy,alpha=8 --tasks {path} --limit 2 "
        f"--batch_size auto --output_path {tmp_path} --log_samples".split()
    )
    assert "tiny" in capsys.readouterr().out
    (results,) = tmp_path.glob("*/results*.json")
    stated = json.loads(results.read_text())["config"]["oddlm"]
    assert (stated["params"]["tiny"]["alpha"], stated["params"]["tiny"]["length"]) == (8, 6)
    (samples,) = tmp_path.glob("*/samples*.jsonl")
    lines = [json.loads(line) for line in samples.read_text().splitlines()]
    assert len(lines) == 2
    assert all(isinstance(one["arguments"]["gen_args_0"]["arg_1"]["seed"], int) for one in lines)
    assert all(len(one["resps"][0]) == 2 for one in lines)


def oddlm_lm_eval(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["oddlm", "lm-eval", *words])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code


def test_the_command_hands_arguments_over(monkeypatch, capsys):
    seen = []
    monkeypatch.setattr("lm_eval.__main__.cli_evaluate", lambda: seen.append(sys.argv))
    words = ["--model", "oddlm", "--gen_kwargs", "temperature=0.5", "-x", "--help", "--seed=1"]
    assert oddlm_lm_eval(monkeypatch, *words) == 0
    assert oddlm_lm_eval(monkeypatch) == 0
    assert seen == [["lm-eval", *words], ["lm-eval", "--help"]]
    assert "oddlm" in model_registry
    assert sys.argv == ["oddlm", "lm-eval"]
    assert oddlm_lm_eval(monkeypatch, "--help") == 0
    assert "--model_args" in capsys.readouterr().out


def test_without_the_harness_the_extra_is_named(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "oddlm.integrations.lm_eval")
    monkeypatch.delattr("oddlm.integrations.lm_eval")
    monkeypatch.setitem(sys.modules, "lm_eval.api", None)
    assert oddlm_lm_eval(monkeypatch, "--model", "oddlm") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "oddlm[lm-eval]" in line


def test_a_chat_prompt_is_a_text():
    prompt = ChatPrompt("a")
    prompt.ids = [1]
    assert json.dumps(prompt) == '"a"'
    assert pickle.loads(pickle.dumps(prompt)).ids == [1]
