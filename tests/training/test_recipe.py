"""Recipes: fields that are checked, settings from the command line, schedules."""

import itertools

import pytest

from antiphase.models import preset
from antiphase.models.locate import shipped_models
from antiphase.training.recipe import Recipe, apply_settings, built_in, load_recipe
from antiphase.training.schedule import lr_factor


def test_built_in_recipes_load_and_name_real_things():
    assert built_in() == [
        "language-micro",
        "language-mini",
        "needle-lab",
        "needle-nano",
        "paper-1.4b",
        "paper-2.8b",
        "prose-micro",
        "prose-nano",
        "unchain",
    ]
    for name in built_in():
        recipe = load_recipe(name)
        preset(recipe.size, recipe.attention)


def test_a_recipe_loads_from_its_yaml_unchanged(tmp_path):
    recipe = load_recipe("needle-nano").changed(seed=7, attention_options={"lam": 0.5})
    (tmp_path / "recipe.yaml").write_text(recipe.as_yaml())
    assert load_recipe(str(tmp_path / "recipe.yaml")) == recipe
    assert recipe.digest() == load_recipe(str(tmp_path / "recipe.yaml")).digest()
    assert recipe.digest() != recipe.changed(lr=2e-3).digest()


def test_any_field_can_be_set():
    recipe = apply_settings(
        Recipe(), ["lr=2e-3", "task_options.noise=0.7", "compile=true", "snapshots=[1, 5]"]
    )
    assert (recipe.lr, recipe.compile, recipe.snapshots) == (2e-3, True, [1, 5])
    assert recipe.task_options == {"noise": 0.7}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["speed=3"], "recipe: has no field 'speed'; its fields are size, attention"),
        (["step=3"], "recipe: has no field 'step'; .*; did you mean 'steps'"),
        (["task_option.noise=1"], "has no field 'task_option'; .*; did you mean 'task_options'"),
        (["schedule=cosin"], "schedule: got 'cosin', .*; did you mean 'cosine'"),
        (["lr"], "--set: got 'lr', expected NAME=VALUE"),
        (["lr.x=1"], "'lr' has no inner fields"),
        (["lr=fast"], "lr: got 'fast', expected a number"),
        (["lr=0"], "expected a number above 0"),
        (["compile=maybe"], "compile: got 'maybe', expected true or false"),
        (["steps=0"], "steps: got 0, expected at least 1"),
        (["steps=1.5"], "steps: got 1.5, expected a whole number"),
        (["schedule=step"], "schedule: got 'step', allowed are cosine, linear, wsd, constant"),
        (["precision=fp8"], "precision: got 'fp8', allowed are fp32, bf16"),
        (["lr=[1"], "--set: 'lr=.1' cannot be read"),
        (["lr=.nan"], "lr: got nan"),
        (["beta1=2"], "beta1: got 2.0, expected 0 to 1"),
        (["evaluate_every=0"], "evaluate_every: got 0, expected at least 1"),
        (["evaluate_examples=2.5"], "evaluate_examples: got 2.5, expected a whole number"),
        (["threads=0"], "threads: got 0, expected at least 1"),
        (["seed=0.5"], "seed: got 0.5, expected a whole number"),
        (["keep=1"], "keep: got 1, expected at least 2"),
        (["spike=abc"], "spike: got 'abc', expected a number or nothing"),
        (["spike=0.5"], "spike: got 0.5, expected more than 1"),
        (["snapshots=2"], "snapshots: got 2, expected a list, each a whole number"),
        (["report=tensorboard"], "report: got 'tensorboard', expected a list, each a string"),
        (["task_options="], "task_options: got None, expected names and their values"),
        (["warmup=-3"], "warmup: got -3.0, expected at least 0"),
        (["accumulate=3"], "batch_size 32 does not divide into 3 micro-batches"),
        (["log_every=30"], "checkpoint_every: 100 is no multiple of log_every 30"),
    ],
)
def test_bad_settings_say_what_is_allowed(settings, message):
    with pytest.raises(ValueError, match=message):
        apply_settings(Recipe(), settings)


@pytest.mark.parametrize(
    ("settings", "attention", "options"),
    [
        (["attention=top_k", "attention_options.k=4"], "top_k", {"k": 4}),
        (["attention_options={a: 1}", "attention_options.b=2"], "diff_v1", {"a": 1, "b": 2}),
        (["attention_options={k: 4}", "attention_options.k=4"], "diff_v1", {"k": 4}),
        (["lr=1", "attention_options.k=4", "lr=1.0"], "diff_v1", {"k": 4}),
    ],
)
def test_the_order_of_settings_does_not_matter(settings, attention, options):
    for ordered in itertools.permutations(settings):
        recipe = apply_settings(Recipe(), list(ordered))
        assert (recipe.attention, recipe.attention_options) == (attention, options)


@pytest.mark.parametrize(
    "settings",
    [
        ["steps=1", "steps=2"],
        ["attention_options.k=4", "attention_options.k=8"],
        ["attention_options={k: 4}", "attention_options.k=8"],
    ],
)
def test_a_field_with_two_values_raises(settings):
    for ordered in itertools.permutations(settings):
        with pytest.raises(ValueError, match=r"--set: \S+ is set twice, to \d and to \d"):
            apply_settings(Recipe(), list(ordered))


def test_recipes_of_existing_runs_load(tmp_path):
    for folder in shipped_models().values():
        assert load_recipe(str(folder / "recipe.yaml")).on_divergence == "stop"
    (tmp_path / "old.yaml").write_text("on_trouble: skip")
    assert load_recipe(str(tmp_path / "old.yaml")).on_divergence == "skip"


def test_a_start_without_a_method_trains_everything():
    recipe = Recipe(start="smollm2", task="language")
    assert (recipe.method, recipe.variant, recipe.title) == (
        "full",
        "full",
        "smollm2, full, seed 0",
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["attention=standard"], "attention: got 'standard', but attention describes a new model"),
        (["size=mini"], "size: got 'mini', but size describes a new model"),
        (["model.hidden_size=8"], "model: got .*, but model describes a new model"),
        (["milestones=[1]"], "milestones is for new models only and the run starts from 'smollm2'"),
        (["method=dx"], "method: got 'dx', allowed are dex, adapter-only.*; did you mean 'dex'"),
        (["method=dex", "method_options.depth=3"], "method 'dex' has no option 'depth'; its opt"),
        (["method=dex", "method_options.anneal=0"], "method 'dex', anneal: got 0"),
        (
            ["method=adapter-only", "method_options.train=kvo"],
            "'adapter-only' fixes train='adapter'",
        ),
        (["method=lora", "method_options.rank=0"], "method 'lora', rank: got 0"),
        (["method=full", "method_options.rank=1"], "method 'full' has no option 'rank'; it has no"),
        (["start=", "method=dex"], "method: is for a pretrained model; set start, too"),
    ],
)
def test_a_start_rejects_what_does_not_fit(settings, message):
    with pytest.raises(ValueError, match=message):
        apply_settings(Recipe(start="smollm2"), settings)


def test_broken_recipe_files_are_named(tmp_path):
    with pytest.raises(ValueError, match="'nope' is no file and no built-in; those are language"):
        load_recipe("nope")
    with pytest.raises(ValueError, match="did you mean 'needle-nano'"):
        load_recipe("needle_nano")
    file = tmp_path / "r.yaml"
    for text, message in {
        "a: [": "is not YAML",
        "- 1": "expected fields and their values, got list",
        "speed: 3": "has no field 'speed'",
        "lr: -1": "expected a number above 0",
    }.items():
        file.write_text(text)
        with pytest.raises(ValueError, match=message):
            load_recipe(str(file))


@pytest.mark.parametrize("schedule", ["cosine", "linear", "wsd", "constant"])
def test_schedules_warm_up_hold_and_decay(schedule):
    recipe = Recipe(steps=1000, warmup=100, schedule=schedule, final_lr=0.1, decay=0.25)
    factors = [lr_factor(step, recipe) for step in range(1001)]
    assert factors[0] == pytest.approx(0.01, abs=0.005)
    assert max(factors) == pytest.approx(1.0, abs=0.01)
    assert all(b >= a for a, b in itertools.pairwise(factors[:101]))
    assert all(b <= a + 1e-12 for a, b in itertools.pairwise(factors[100:]))
    assert factors[1000] == pytest.approx(1.0 if schedule == "constant" else 0.1)
    if schedule == "wsd":
        assert factors[700] == 1.0
    assert lr_factor(50, Recipe(steps=1000, warmup=0.1)) == lr_factor(
        50, Recipe(steps=1000, warmup=100)
    )
