"""Any OpenAI-compatible server, for measuring difficulty and for evaluation: its weights cannot be replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from ...errors import RolloutError
from ...scoring.scorer import Scorer
from ..local import LocalSampler, Prompting
from ..sampling import Continue, Finished, Request, Response, Sampling, aborted
from .client import LOOK_SECONDS, Failed, Refused, Server, Servers, background, run
from .protocols import NEUTRAL, PROTOCOLS, WRONG_REQUEST, Body, ask, read, response_of

TOO_LARGE = 413

Result = TypeVar("Result")


class OpenAISampler(LocalSampler):
    """Samples with one or several servers of OpenAI's protocols, such as ``vllm serve``.

    Each response is a request with its own ``seed``. The tokens for a seed depend on the server; vLLM gives the same as
    ``VllmSampler``. vLLM returns token ids (``return_token_ids``). Text of other servers is tokenized here, which may
    split it differently than the policy did (column ``retokenized``). Log-probabilities are the server's. They are
    empty if it reports none or, for text, if its tokens differ from those made here. A request that always fails
    becomes an ``aborted`` response with the reason in ``failure``, as long as others succeed.

    Args:
        model: Directory or name of the model whose tokenizer encodes prompts and decodes responses.
        base_url: The server's address, such as ``http://localhost:8000/v1``.
        base_urls: The addresses of several servers of one model, instead.
        protocol: ``completions`` (prompts as token ids) or ``chat`` (prompts as messages, for servers without
            completions).
        api_key: Sent as a bearer token.
        served_model: The model's name on the server; by default ``model``, or the server's only model.
        concurrency: Requests in flight at a time at each server.
        timeout_seconds: Deadline of one answer, up to its last byte.

    Raises:
        RolloutError: An argument is not valid, the tokenizer cannot be loaded, no server answers, or one has no such
            model.
    """

    retokenizes = True

    def __init__(
        self,
        model: str | Path,
        sampling: Sampling,
        *,
        prompting: Prompting | None = None,
        scorer: Scorer | None = None,
        base_url: str | None = None,
        base_urls: Sequence[str] = (),
        protocol: str = "completions",
        api_key: str | None = None,
        served_model: str | None = None,
        concurrency: int = 64,
        timeout_seconds: float = 600.0,
    ) -> None:
        if (base_url is None) == (not base_urls) or isinstance(base_urls, str):
            raise RolloutError("either base_url or base_urls must be given, such as http://localhost:8000/v1")
        if protocol not in PROTOCOLS:
            raise RolloutError(f"protocol is {protocol!r}; it must be one of {', '.join(PROTOCOLS)}")
        if concurrency < 1:
            raise RolloutError(f"concurrency is {concurrency}; it must be at least 1")
        if not timeout_seconds > 0:
            raise RolloutError(f"timeout_seconds is {timeout_seconds}; it must be above 0")
        _check_protocol(protocol, sampling)
        addresses = [base_url] if base_url is not None else list(base_urls)
        self._servers = Servers([Server(a, api_key=api_key, timeout_seconds=timeout_seconds) for a in addresses])
        try:
            super().__init__(model, sampling, prompting=prompting, scorer=scorer)
            self._protocol = protocol
            self._at_a_time = concurrency * len(addresses)
            from transformers import AutoConfig

            try:
                width = int(AutoConfig.from_pretrained(self.model).get_text_config().vocab_size)
            except (OSError, ValueError, AttributeError):
                # There may be only a tokenizer.
                width = 0
            # A model's output may be wider than its tokenizer.
            self._vocabulary = max(width, len(self.tokenizer))
            self.served_model = run(served_name(self._servers, self.model, served_model))
        except BaseException:
            self.close()
            raise

    def use(self, sampling: Sampling) -> None:
        """Change the sampling settings; see ``Sampler.use``."""
        _check_protocol(self._protocol, sampling)
        super().use(sampling)

    def sync(self, weights: Any, version: int, *, in_flight: bool = False) -> None:
        """Refuse: a server's weights cannot be replaced."""
        raise RolloutError(
            f"the weights of {self._servers} cannot be replaced: use the openai sampler for difficulty and evaluation "
            "only, and train with vllm or transformers"
        )

    def close(self) -> None:
        """Close the connections; the servers stay as they are."""
        run(self._servers.close())

    def _generate(self, requests: Sequence[Request], control: Continue) -> Finished:
        reached = False

        async def finish(index: int) -> Response:
            """Return the finished response to one request, or an aborted one."""
            nonlocal reached
            request = requests[index]
            while True:
                try:
                    response = await self._servers.answered(partial(self._response, request=request))
                except Failed as error:
                    if error.unreachable and not reached:
                        raise RolloutError(str(error)) from None
                    reached = reached or not error.unreachable
                    return aborted(str(error))
                except Refused as error:
                    if error.status not in {*WRONG_REQUEST, TOO_LARGE}:
                        raise RolloutError(str(error)) from None
                    reached = True
                    return aborted(str(error))
                reached = True
                taken = control(index, response)
                if isinstance(taken, Response):
                    return taken
                request = taken

        failed: list[tuple[int, Response]] = []
        succeeded = False
        with closing(in_parallel(len(requests), finish, at_a_time=self._at_a_time)) as finished:
            for index, response in finished:
                if not succeeded and response.failure is not None:
                    failed.append((index, response))
                    continue
                if not succeeded:
                    succeeded = True
                    yield from failed
                yield index, response
        if failed and not succeeded:
            raise RolloutError(f"all {len(failed)} requests failed: {failed[0][1].failure}")

    async def _response(self, server: Server, request: Request) -> Response:
        if self._protocol == "chat" and not request.messages:
            # Without a chat template here, the whole text is the user's.
            text = self.tokenizer.decode(request.prompt_ids)
            request = replace(request, messages=({"role": "user", "content": text},))
        try:
            answer = await ask(server, PROTOCOLS[self._protocol], self._body(request))
        except Refused as error:
            raise Refused(f"{server} refuses ({error})", status=error.status) from None
        return response_of(
            read(answer, request, protocol=self._protocol),
            request,
            tokenizer=self.tokenizer,
            vocabulary=self._vocabulary,
            ends=self.stop_token_ids,
            stops=bool(self.sampling.stop),
        )

    def _body(self, request: Request) -> Body:
        """Return the body of a request; a prompt for ``completions`` was rendered here with the chat options."""
        sampling = self.sampling
        fields: dict[str, Any] = {
            "model": self.served_model,
            "seed": request.seed,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "n": 1,
        }
        if sampling.stop:
            fields["stop"] = list(sampling.stop)
        own = {name: value for name in ("top_k", "min_p") if (value := getattr(sampling, name))}
        optional = {name: value for name, value in NEUTRAL.items() if name not in own}
        optional["return_token_ids"] = True
        if sampling.stop_token_ids:
            own["stop_token_ids"] = self.stop_token_ids
        elif self.stop_token_ids:
            # A server stops at its model's own end-of-sequence tokens without being told.
            optional["stop_token_ids"] = self.stop_token_ids
        if self._protocol == "chat":
            fields["messages"] = [dict(message) for message in request.messages]
            if self._prompting.chat_options:
                own["chat_template_kwargs"] = dict(self._prompting.chat_options)
            optional |= {"max_tokens": request.max_new_tokens, "logprobs": True}
        else:
            fields |= {"prompt": request.prompt_ids, "max_tokens": request.max_new_tokens}
            optional["logprobs"] = 1
        return Body(fields={**fields, **own}, optional=optional, own=tuple(own))


def _check_protocol(protocol: str, sampling: Sampling) -> None:
    if protocol == "chat" and sampling.interruption is not None:
        raise RolloutError(
            "interruption goes on from the middle of a response, which the protocol chat cannot: use completions"
        )


async def served_name(servers: Servers, model: str, wanted: str | None) -> str:
    """Return a model's name on the servers, checked against their lists."""
    name, silent = wanted, []
    for server in servers.all:
        try:
            answer = await Servers([server]).answered(lambda s: s.ask("models", None))
            listed = [str(entry["id"]) for entry in answer["data"]]
        except Failed as error:
            silent.append(str(error))
            continue
        except Refused as error:
            if error.status != 404:
                raise RolloutError(f"{server} refuses ({error})") from None
            # The server has no such list.
            listed = []
        except (KeyError, TypeError):
            raise RolloutError(f"{server.base_url}/models does not answer as an OpenAI-compatible server") from None
        if name is None:
            name = listed[0] if model not in listed and len(listed) == 1 else model
        if listed and name not in listed:
            raise RolloutError(f"{server} has no model {name} (it has {', '.join(listed)})")
    if len(silent) == len(servers.all):
        raise RolloutError(silent[0])
    return name or model


def in_parallel(
    count: int, work: Callable[[int], Coroutine[Any, Any, Result]], *, at_a_time: int
) -> Generator[tuple[int, Result], None, None]:
    """Run ``work(0)`` to ``work(count - 1)``, started in that order, and yield indices and results as they finish.

    New work starts when results are taken, so a slow consumer is not overrun. Closing the iterator, or an error,
    cancels the rest.
    """
    indices, active = iter(range(count)), dict[Future[Result], int]()
    done = set[Future[Result]]()
    try:
        while True:
            finished = [(active.pop(future), future) for future in done]
            for index in islice(indices, at_a_time - len(active)):
                active[asyncio.run_coroutine_threadsafe(work(index), background())] = index
            for index, future in finished:
                yield index, future.result()
            if not active:
                return
            done = wait(active, timeout=LOOK_SECONDS, return_when=FIRST_COMPLETED).done
    finally:
        # Do not wait for them, since the process may be ending.
        for future in active:
            future.cancel()
