"""The syntax of `--space`, and what is drawn from a space."""

from random import Random

import pytest

from oddlm.config import checked
from oddlm.experiments.tune.space import DEFAULT, draw, read_settings, read_space
from oddlm.params import SampleParams


class Dice:
    """Draws like a trial, and keeps the names that it was asked for."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self.asked: dict[str, object] = {}

    def suggest_categorical(self, name, choices):
        self.asked[name] = list(choices)
        return self._random.choice(choices)

    def suggest_float(self, name, low, high, *, log):
        self.asked[name] = (low, high, log)
        return self._random.uniform(low, high)

    def suggest_int(self, name, low, high, *, log):
        self.asked[name] = (low, high, log)
        return self._random.randint(low, high)


def test_the_default_draws_plain_sampling_and_every_kind_of_push():
    space = read_space(DEFAULT, {})
    drawn = [draw(space, {"length": 8}, Dice(seed)) for seed in range(60)]
    assert all(checked(SampleParams, settings).length == 8 for settings in drawn)
    assert {settings.get("objective") for settings in drawn} == {
        None,
        "odd",
        "odd_sequential",
        "dpp",
    }
    for settings in drawn:
        assert (
            (settings["alpha"] == 0)
            == ("objective" not in settings)
            == ("alpha_schedule" not in settings)
        )
        assert settings["alpha"] == 0 or 1 <= settings["alpha"] <= 128
    dice = Dice(0)
    draw(space, {}, dice)
    assert dice.asked["alpha in 1..128:log"] == (1, 128, True)
    assert dice.asked["temperature"] == (0, 1.5, False)


def test_every_syntax(tmp_path):
    (tmp_path / "space.toml").write_text(
        '[space]\nalpha = "0,2..32:log"\nfork = [true, false]\n'
        'policy = ["margin", {name = "threshold", threshold = 0.8}]\n'
    )
    given = [
        str(tmp_path / "space.toml"),
        "steps=4..8",
        "eos=free,late",
        "top_p=0.9",
        'feature=["max_pool"]',
    ]
    space = {axis.name: axis for axis in read_space(given, {})}
    assert str(space["alpha"]) == "alpha=0,2..32:log"
    assert space["fork"].values == (True, False)
    assert space["policy"].values == ("margin", {"name": "threshold", "threshold": 0.8})
    assert space["top_p"].values == (0.9,)
    drawn = [draw(tuple(space.values()), {}, Dice(seed)) for seed in range(40)]
    assert {settings["steps"] for settings in drawn} == {4, 5, 6, 7, 8}
    assert all(isinstance(settings["steps"], int) for settings in drawn)
    assert {str(settings["policy"]) for settings in drawn} == {
        "margin",
        "{'name': 'threshold', 'threshold': 0.8}",
    }


def test_numbers_have_three_digits_and_stay_inside():
    space = read_space(["temperature=0.99949..0.99999", "order_temperature=0..3"], {})
    for seed in range(30):
        settings = draw(space, {}, Dice(seed))
        assert 0.99949 <= settings["temperature"] <= 0.99999
        assert float(f"{settings['order_temperature']:.3g}") == settings["order_temperature"]


class Fixed:
    """A trial that suggests given values."""

    def __init__(self, suggested: dict[str, object]) -> None:
        self._suggested = suggested

    def suggest_categorical(self, name, choices):
        assert self._suggested[name] in choices
        return self._suggested[name]

    def suggest_float(self, name, low, high, *, log):
        assert low <= self._suggested[name] <= high
        return self._suggested[name]

    def suggest_int(self, name, low, high, *, log):
        return self.suggest_float(name, low, high, log=log)


def test_what_can_be_drawn_can_be_told():
    given = [
        *DEFAULT,
        "steps=4..8",
        "fork=true,false",
        "top_p=0.9,1",
        'policy=["margin", {"name": "threshold", "threshold": 0.8}]',
    ]
    space = {axis.name: axis for axis in read_space(given, {})}
    for seed in range(40):
        drawn = draw(tuple(space.values()), {}, Dice(seed))
        suggested = {
            k: v for name, value in drawn.items() for k, v in space[name].suggested(value).items()
        }
        assert draw(tuple(space.values()), {}, Fixed(suggested)) == drawn


@pytest.mark.parametrize(
    ("axis", "value"),
    [
        ("alpha=1..128:log", 0),
        ("alpha=0,1..128:log", 0.5),
        ("alpha=0,1..128:log", "8"),
        ("alpha=0,1..128:log", 1.2345),
        ("temperature=0..2", True),
        ("steps=4..8", 4.5),
        ("top_k=1,2", True),
        ("policy=margin,random", {"name": "margin", "x": 1}),
    ],
)
def test_what_is_not_in_the_space(axis, value):
    with pytest.raises(ValueError, match=f"is not in the space {axis}"):
        read_space([axis], {})[0].suggested(value)


def test_settings_in_words_and_in_json():
    assert read_settings("alpha=8, fork=true,policy=margin") == {
        "alpha": 8,
        "fork": True,
        "policy": "margin",
    }
    assert read_settings('{"policy": {"name": "threshold", "threshold": 0.8}}') == {
        "policy": {"name": "threshold", "threshold": 0.8}
    }
    for text, message in (
        ("alpha", "not 'alpha'"),
        ("a=1,,b=2", "not 'a=1,,b=2'"),
        ("{1}", r"'\{1\}' .* JSON object"),
    ):
        with pytest.raises(ValueError, match=message):
            read_settings(text)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "the space is empty: give at least one NAME=LOW"),
        (
            ["alfa=1..2"],
            "unknown setting 'alfa' in the space; known: length, steps, block_length, temperature",
        ),
        (["seed=1,2"], "unknown setting 'seed'"),
        (
            ["temperature=2..1"],
            r"temperature: the low end of a range .*, not 2\.\.1",
        ),
        (["temperature=1..1"], r"temperature: the low end of a range .*, not 1\.\.1"),
        (["temperature=nan..1"], r"temperature: the low end of a range .*, not nan\.\.1"),
        (["temperature=a..b"], r"temperature: .*, not a\.\.b"),
        (["alpha=-1"], "alpha: Input should be greater than or equal to 0, not -1"),
        (["alpha=-1..8"], "alpha: Input should be greater than or equal to 0, not -1.0"),
        (
            ["alpha=0..8:log"],
            r"alpha: a log scale .*, not at 0; .*: alpha=0,1\.\.8:log",
        ),
        (["alpha=0,1..2,4..8"], "alpha has two ranges"),
        (["alpha=1,1"], "alpha has the value 1 twice"),
        (["alpha="], "alpha needs values"),
        (["policy=margin,,random"], "policy needs values"),
        (["policy=1..3"], r"policy is not a number: .*, not 1\.\.3"),
        (["steps=1.5..4"], r"steps is an integer, but 1\.5\.\.4"),
        (["eos=sometimes"], "eos: Input should be 'free', 'late' or 'never', not 'sometimes'"),
        (["policy=[margin]"], r"policy: '\[margin\]' is not a JSON list"),
        (["alpha=1,2", "alpha=3,4"], "alpha is in the space twice"),
        (["length=8,16"], "length is both fixed and in the space"),
        (["alpha"], "--space takes NAME=LOW..HIGH, NAME=A,B,C or a .toml file, not 'alpha'"),
        (["no.toml"], "cannot read no.toml: No such file"),
    ],
)
def test_bad_spaces(given, message):
    with pytest.raises(ValueError, match=message):
        read_space(given, {"length": 8})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x = 1", r"must hold one table, \[space\]"),
        ("[space]", "the space is empty"),
        ("[space", "space.toml is not TOML: "),
    ],
)
def test_bad_files(tmp_path, content, message):
    (tmp_path / "space.toml").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_space([str(tmp_path / "space.toml")], {})
