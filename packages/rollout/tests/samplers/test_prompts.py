"""Prompts of real tokenizers, and what is said of a model that cannot be loaded."""

import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from isocompute.rollout import Prompting, RolloutError, prompting_from
from isocompute.rollout.errors import not_loaded
from isocompute.rollout.samplers import local
from isocompute.rollout.samplers.local import PromptMaker

# As Llama's: the template writes the beginning of the sequence itself.
WITH_BOS = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }};{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% if enable_thinking is defined and not enable_thinking %}!{% endif %}"
    "{% endif %}"
)
WITHOUT_BOS = WITH_BOS.removeprefix("{{ bos_token }}")
REFUSING = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}ok"


def tokenizer(*, template: str | None = None, adds: str = "", bos: bool = True) -> Any:
    """A tokenizer of single characters that adds ``bos``, or ``bos eos``, by itself."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors

    characters = sorted(set("abcdefghijklmnopqrstuvwxyz0123456789+-=[];! \nQA:<>"))
    vocabulary = {token: i for i, token in enumerate(["<unk>", "<s>", "</s>", *characters])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    if adds:
        single = "<s> $A </s>" if adds == "bos eos" else "<s> $A"
        inner.post_processor = processors.TemplateProcessing(single=single, special_tokens=[("<s>", 1), ("</s>", 2)])
    special = {"bos_token": "<s>"} if bos else {}
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", eos_token="</s>", **special)
    made.chat_template = template
    return made


def prompt(made: Any, text: str = "1+1=", *, longest: int = 200, **prompting: Any) -> str:
    """The text of a prompt's tokens, special ones included."""
    maker = PromptMaker(made, prompting_from(prompting), max_prompt_tokens=longest)
    return "".join(made.convert_ids_to_tokens(maker.ids("p", text)))


def test_a_tokenizer_with_a_chat_template_chats_unless_it_is_told_otherwise() -> None:
    made, own = tokenizer(template=WITHOUT_BOS), {"chat_template": "Q{{ messages[0].content }}A"}
    assert prompt(made) == prompt(made, template="chat") == "[user]1+1=;[assistant]"
    assert prompt(made, template="plain") == prompt(tokenizer()) == "1+1="
    assert prompt(tokenizer(), template="chat", chat_options=own) == "Q1+1=A"
    for asked, message in (
        ({"template": "chat"}, "the tokenizer has no chat"),
        ({"bos": True}, "and the tokenizer has no"),
    ):
        with pytest.raises(RolloutError, match=message):
            prompt(tokenizer(bos=False), **asked)


@pytest.mark.parametrize("adds", ["", "bos", "bos eos"])
@pytest.mark.parametrize("bos", [None, True, False])
def test_a_prompt_begins_once_as_it_is_told_or_as_the_template_or_else_the_tokenizer_does_and_never_ends(
    adds: str, bos: bool | None
) -> None:
    chat, always = "[user]1+1=;[assistant]", "<s>" if bos else ""
    assert prompt(tokenizer(template=WITH_BOS, adds=adds), bos=bos) == ("" if bos is False else "<s>") + chat
    assert prompt(tokenizer(template=WITHOUT_BOS, adds=adds), bos=bos) == always + chat
    plain = ("<s>" if adds and bos is None else always) + "1+1="
    assert prompt(tokenizer(adds=adds), bos=bos) == plain
    # A text that was rendered elsewhere and begins already.
    assert prompt(tokenizer(adds=adds), "<s>1+1=", bos=bos) == (plain if bos is not None else "<s>1+1=")


def test_system_prompt_and_examples_are_turns_of_a_chat_or_text_of_a_plain_prompt() -> None:
    made = tokenizer(template=WITH_BOS)
    asked = {"system": "be brief", "examples": [["1+2=", "3"], ["2+2=", "4"]]}
    assert prompt(made, **asked) == (
        "<s>[system]be brief;[user]1+2=;[assistant]3;[user]2+2=;[assistant]4;[user]1+1=;[assistant]"
    )
    assert prompt(made, chat_options={"enable_thinking": False}) == "<s>[user]1+1=;[assistant]!"
    # And text of a plain prompt.
    asked = {"system": "be brief", "examples": [["1+2=", "3"]]}
    assert prompt(tokenizer(adds="bos"), **asked) == "<s>be brief\n\n1+2=3\n\n1+1="
    assert prompt(tokenizer(), separator=" ", **asked) == "be brief 1+2=3 1+1="


def test_a_template_that_writes_the_date_writes_a_fixed_one() -> None:
    # As Llama 3's and Mistral's, which would make other prompts from midnight on.
    made = tokenizer(template="{{ strftime_now('%d %b %Y') }};{{ messages[0].content }}" + "{{ strftime_now('%H') }}")
    assert prompt(made) == "26 <unk>ul 2024;1+1=00"
    assert prompt(made, date="2025-01-31") == "31 <unk>an 2025;1+1=00"


def test_a_digest_tells_prompts_from_others() -> None:
    problems = pl.DataFrame({"problem_id": ["a", "b"], "prompt": ["1+1=", "2+2="]})

    def digest(table: pl.DataFrame = problems, **prompting: Any) -> str:
        made = tokenizer(template="{{ strftime_now('%Y') }}{{ messages[-1].content }}")
        # Prompts that are too long are an error when they are sampled from, and none here.
        return PromptMaker(made, prompting_from(prompting), max_prompt_tokens=1).digest(table)

    assert digest() == digest(problems.reverse())
    assert len({digest(), digest(date="2025-01-01"), digest(template="plain"), digest(problems.head(1))}) == 4


def test_a_template_that_refuses_is_one_sentence() -> None:
    made = tokenizer(template=REFUSING)
    assert prompt(made) == "ok"
    with pytest.raises(
        RolloutError, match=r"problem p: the tokenizer's chat template cannot be rendered \(System role"
    ):
        prompt(made, system="be brief")
    with pytest.raises(RolloutError, match="tokenizer's chat template"):
        prompt(tokenizer(template="{% for %}"))


def test_prompts_without_text_and_prompts_that_are_too_long_are_named() -> None:
    made = tokenizer(template=WITH_BOS, adds="bos")
    for asked in ({}, {"template": "plain"}, {"template": "plain", "system": "be brief"}):
        with pytest.raises(RolloutError, match="p has an empty prompt; it"):
            prompt(made, "", **asked)
    assert prompt(made, template="plain", longest=5) == "<s>1+1="
    with pytest.raises(RolloutError, match="max_prompt_tokens = 4"):
        prompt(made, template="plain", longest=4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"template": "llama"}, "template is 'llama'"),
        ({"examples": [["a", 1]]}, r"examples\[0\]\[1\] is 1"),
        ({"date": "26 Jul 2024"}, "date is '26 Jul 2024'"),
        ({"chat_options": {"tokenize": True}}, "holds 'tokenize'"),
        ({"sytem": "s"}, "no setting 'sytem'"),
        (None, "prompting is None"),
    ],
)
def test_a_setting_that_cannot_be_is_named(settings: Any, message: str) -> None:
    with pytest.raises(RolloutError, match=message):
        prompting_from(settings)


def test_a_library_that_does_not_fit_torch_is_named_with_the_command_that_mends_it_and_no_model_is_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from isocompute.rollout.samplers.vllm.sampler import engine_class

    # As its CUDA build is beside the CPU build of torch: it is there, and cannot be imported.
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(
        'raise RuntimeError("operator torchvision::nms does not exist")\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    said = str(not_loaded("some/model", ImportError("cannot import name 'LLM'")))
    assert "the installed torchvision does not fit this torch (operator torchvision::nms does not exist)" in said
    assert said.endswith("pip uninstall --yes torchvision torchaudio torchcodec")
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("import torchvision\nclass LLM: pass\n")
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(RolloutError, match="pip uninstall --yes"):
        engine_class("some/model")


FOREVER = {
    "loops in loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "a text that grows": "{{ 'a' * 10**11 }}",
    "a macro that calls itself": "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
}


@pytest.mark.slow("processes that render a template")
def test_a_template_that_does_not_end_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "CPU_SECONDS", 1)
    for name in ("loops in loops", "a text that grows"):
        with pytest.raises(RolloutError, match=r"template does not end: .* more than 1 s"):
            PromptMaker(tokenizer(template=FOREVER[name]), Prompting(), max_prompt_tokens=9)
    with pytest.raises(RolloutError, match="chat template"):
        prompt(tokenizer(template=FOREVER["a macro that calls itself"]))
    counting = "{% for i in range(3) %}{% generation %}{{ i * 2 }}{% endgeneration %}{% endfor %}"
    assert prompt(tokenizer(template=counting)) == "024"
