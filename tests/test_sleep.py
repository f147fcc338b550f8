"""Sleep, as an engine, an `LLM` and a server have it: nothing runs, nothing is lost, and refusals change nothing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from driver import Outcome, drive, prompts_of, request
from equality import Reference, assert_greedy_equal
from served import LIMIT_S, Served, serving

from tenon_core import LLM, SamplingParams
from tenon_core.engine.assembly import Assembled
from tenon_core.engine.messages import FinishReason, sequence_key
from tenon_core.serving.config import ServerConfig
from tenon_platforms.errors import CapacityError, ConfigError, RequestError
from tenon_platforms.pools import Pool

pytestmark = pytest.mark.e2e
Build = Callable[..., Assembled]
ALL = tuple(Pool)


def begun(assembled: Assembled, prompts: list[list[int]], **params: Any) -> Outcome:
    """An engine in the midst of these requests."""
    engine, outcome = assembled.engine, Outcome()
    for place, prompt in enumerate(prompts):
        engine.submit(request(place, prompt, **params))
    for _ in range(9):
        outcome.take(engine.step())
    assert outcome.prompts and engine.has_work()
    return outcome


@pytest.mark.parametrize("params", [{}, {"n": 3, "temperature": 5.0}, {"beam_width": 2}], ids=["greedy", "n", "beams"])
def test_requests_end_as_if_the_engine_had_not_slept(platform_name: str, build_tiny: Build, params: Any) -> None:
    prompts = prompts_of((3, 30, 18))
    sizes: dict[str, Any] = {"max_num_seqs": 12, "enable_sleep_mode": True}
    wanted = drive(
        build_tiny("gemma3", platform_name, **sizes).engine,
        [request(place, prompt, **params) for place, prompt in enumerate(prompts)],
    )
    assembled = build_tiny("gemma3", platform_name, **sizes)
    engine, outcome = assembled.engine, begun(assembled, prompts, **params)
    engine.sleep(ALL)
    engine.check_integrity()
    engine.wake(ALL)
    drive(engine, outcome=outcome)
    assert outcome.tokens == wanted.tokens


def test_a_prompt_that_sleep_cut_short_has_each_logprob_once(build_tiny: Build) -> None:
    sizes: dict[str, Any] = {"enable_sleep_mode": True, "max_num_batched_tokens": 16}
    engine, (prompt,) = build_tiny("llama", "reference", **sizes).engine, prompts_of((50,))
    found = []
    for steps in (0, 2):
        engine.submit(request(steps, prompt, prompt_logprobs=1, max_tokens=2))
        for _ in range(steps):
            engine.step()
        engine.sleep(ALL)
        engine.wake(ALL)
        found.append(drive(engine).prompts[sequence_key(steps, 0)].logprobs)
    whole, cut = found
    assert whole is not None and cut is not None
    assert [one and one.token_id for one in cut] == [one and one.token_id for one in whole] == [None, *prompt[1:]]


def test_a_sleeping_engine_takes_requests_and_ends(
    platform_name: str, build_tiny: Build, reference_of: Callable[[str], Reference]
) -> None:
    prompts = prompts_of((5, 25, 40, 12))
    assembled = build_tiny("llama", platform_name, enable_sleep_mode=True)
    engine, outcome = assembled.engine, begun(assembled, prompts[:3])
    engine.sleep(ALL)
    assert engine.sleep(ALL) == 0
    engine.submit(request(3, prompts[3]))
    engine.abort([1])
    while engine.has_work():
        outcome.take(engine.step())
    assert outcome.reason(1) is FinishReason.ABORT
    assert engine.step() is None
    assert engine.stats().num_waiting == 3
    engine.check_integrity()
    engine.wake((Pool.WEIGHTS,))
    assert not engine.has_work(), "it runs without a cache"
    engine.wake((Pool.KV_CACHE,))
    drive(engine, outcome=outcome)
    for place in (0, 2, 3):
        assert_greedy_equal(outcome.of(place), reference_of("llama"), prompts[place], label=f"prompt {place}")


def test_prefixes_are_forgotten_with_the_cache_alone(platform_name: str, build_tiny: Build) -> None:
    (prompt,) = prompts_of((96,))
    engine = build_tiny("llama", platform_name, enable_sleep_mode=True).engine
    for place, (pools, is_kept) in enumerate(((ALL, False), ((Pool.WEIGHTS,), True), ((Pool.KV_CACHE,), False))):
        first, second = 2 * place, 2 * place + 1
        drive(engine, [request(first, prompt, max_tokens=2)])
        engine.sleep(pools)
        engine.wake(pools)
        outcome = drive(engine, [request(second, prompt, max_tokens=2)])
        assert (outcome.prompts[sequence_key(second, 0)].num_cached_tokens > 0) == is_kept, pools


def test_a_device_without_room_sleeps_on(build_tiny: Build) -> None:
    from tenon_sim.native import native

    options = {"memory_mb": (native().memory(0).used >> 20) + 64}  # one for all tests of this process
    assembled = build_tiny("llama", "sim", platform_options=options, enable_sleep_mode=True, num_blocks=64)
    engine, (prompt,) = assembled.engine, prompts_of((20,))
    wanted = drive(engine, [request(0, prompt)]).of(0)
    before = engine.device.memory().free
    given_back = engine.sleep(ALL)
    assert engine.device.memory().free == before + given_back > before
    import torch

    other = engine.device.empty((engine.device.memory().free - given_back // 2,), torch.uint8)
    with pytest.raises(CapacityError, match="no room for"):
        engine.wake(ALL)
    assert engine.sleeping.asleep and engine.step() is None
    del other
    engine.wake(ALL)
    assert engine.device.memory().free == before
    assert drive(engine, [request(1, prompt)]).of(1) == wanted


def test_an_engine_that_was_not_made_for_it_goes_on(build_tiny: Build) -> None:
    engine, (prompt,) = build_tiny("llama", "reference").engine, prompts_of((5,))
    for change in (engine.sleep, engine.wake):
        with pytest.raises(ConfigError, match="cannot sleep") as raised:
            change(ALL)
        assert "--enable-sleep-mode" in str(raised.value.remedy)
    assert len(drive(engine, [request(0, prompt)]).of(0)) == 32


def test_an_llm_sleeps(tiny_folder: Path) -> None:
    greedy = SamplingParams(temperature=0.0, max_tokens=8)
    with LLM(str(tiny_folder), platform="reference", num_blocks=64, enable_sleep_mode=True) as llm:
        wanted = llm.generate("abc", greedy)[0].outputs[0].text
        assert not llm.is_sleeping
        llm.sleep()
        assert llm.is_sleeping
        with pytest.raises(ConfigError, match=r"sleeps.*\n.*wake_up"):
            llm.generate("abc", greedy)
        llm.wake_up(["weights"])
        assert llm.is_sleeping
        llm.wake_up()
        assert not llm.is_sleeping
        assert llm.generate("abc", greedy)[0].outputs[0].text == wanted
        for level in (0, 2, True, "1", None):
            with pytest.raises(RequestError, match="level is"):
                llm.sleep(level)  # type: ignore[arg-type]
        for tags in ("weights", ["kv"], [3], [["weights"]], 5):
            with pytest.raises(RequestError, match="tags"):
                llm.wake_up(tags)  # type: ignore[arg-type]
        assert not llm.is_sleeping
    with LLM(str(tiny_folder), platform="reference", num_blocks=64) as llm, pytest.raises(ConfigError):
        llm.sleep()


@pytest.fixture(scope="module", params=["sim", "two API processes"])
def server(
    request: pytest.FixtureRequest, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    log = tmp_path_factory.mktemp("log") / "server.log"
    of_kind = (
        ("--platform", "sim") if request.param == "sim" else ("--platform", "reference", "--api-server-count", "2")
    )
    flags = ("--max-num-seqs", "8", "--num-blocks", "100", "--enable-sleep-mode", "--stall-seconds", "60")
    with serving(tiny_folder, log, *of_kind, *flags) as served:
        yield served


def post(served: Served, path: str, **options: Any) -> httpx.Response:
    return httpx.post(f"{served.url}{path}", timeout=LIMIT_S, **options)


def asleep(served: Served) -> list[str]:
    found = httpx.get(f"{served.url}/is_sleeping", timeout=LIMIT_S).json()
    assert found["is_sleeping"] == bool(found["asleep"])
    names: list[str] = found["asleep"]
    return names


def test_a_stream_goes_on_after_the_server_slept(server: Served) -> None:
    body = {"model": server.model(), "prompt": "abcd", "max_tokens": 90, "temperature": 0}
    wanted = post(server, "/v1/completions", json=body).json()["choices"][0]["text"]

    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=LIMIT_S) as client:
            stream = await client.completions.create(**{**body, "stream": True})
            pieces: list[str] = []
            async for event in stream:
                pieces += [choice.text for choice in event.choices]
                if len(pieces) == 2:
                    answer = await asyncio.to_thread(post, server, "/sleep?level=1")
                    assert answer.status_code == 200, answer.text
                    assert answer.json()["asleep"] == ["weights", "kv_cache"]
                    assert answer.json()["bytes_given_back"] > 0
                    assert await asyncio.to_thread(asleep, server) == ["weights", "kv_cache"]
                    late = asyncio.ensure_future(client.completions.create(**body))
                    await asyncio.sleep(1.0)
                    assert not late.done(), "a request was answered by a server that sleeps"
                    assert server.metric_of("tenon:engine_asleep", pool="weights") == 1
                    health = await asyncio.to_thread(httpx.get, f"{server.url}/health", timeout=LIMIT_S)
                    assert health.status_code == 200
                    awake = await asyncio.to_thread(post, server, "/wake_up?tags=kv_cache")
                    assert awake.json()["asleep"] == ["weights"]
                    awake = await asyncio.to_thread(post, server, "/wake_up")
                    assert awake.json() == {"is_sleeping": False, "asleep": [], "bytes_given_back": 0}
            assert "".join(pieces) == wanted
            assert (await late).choices[0].text == wanted

    asyncio.run(main())
    assert asleep(server) == []
    assert server.metric_of("tenon:engine_asleep", pool="weights") == 0
    server.settle()


def test_clients_that_ask_at_once_are_all_answered(server: Served) -> None:
    found: list[int] = []
    paths = ["/sleep", "/wake_up", "/sleep?level=1", "/wake_up?tags=weights&tags=kv_cache"] * 5
    threads = [
        threading.Thread(target=lambda path=path: found.append(post(server, path).status_code)) for path in paths
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [200] * 20
    post(server, "/wake_up")
    server.settle()


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/sleep?level=2", 400, "level is 2"),
        ("/sleep?level=0", 400, "level is 0"),
        ("/sleep?level=1&level=1", 400, "given 2 times"),
        ("/sleep?level=%F0%9F%98%B4", 400, "level is"),
        ("/sleep?level=" + "9" * 3000, 400, "level is"),
        ("/sleep?level=" + "9" * 30000, 400, "level is"),
        ("/sleep?mode=wait", 400, "unknown parameter"),
        ("/wake_up?tags=kv", 400, "tags holds 'kv'"),
        ("/wake_up?tags=weights,kv_cache", 400, "tags holds"),
        ("/wake_up?" + "tags=weights&" * 9, 400, "at most 8"),
        ("/wake_up?level=1", 400, "unknown parameter"),
    ],
)
def test_what_is_wrong_changes_nothing(server: Served, path: str, status: int, said: str) -> None:
    answer = post(server, path)
    assert (answer.status_code, said in answer.json()["error"]["message"]) == (status, True), answer.text
    assert asleep(server) == []


def test_pages_of_other_origins_may_not(server: Served) -> None:
    host = server.url.removeprefix("http://")
    others = ("https://evil.example", "null", "", "http://[", "http://[::1", f"ftp://{host}", f"//{host}")
    for origin, status in (*((one, 403) for one in others), (f"http://{host}", 200)):
        for path in ("/sleep", "/wake_up"):
            assert post(server, path, headers={"origin": origin}).status_code == status, (origin, path)
    assert asleep(server) == []


@pytest.mark.parametrize("num_processes", ["1", "2"])
def test_a_server_that_ends_asleep_keeps_nobody_waiting(tiny_folder: Path, tmp_path: Path, num_processes: str) -> None:
    flags = ("--platform", "reference", "--enable-sleep-mode", "--api-server-count", num_processes)
    found: list[httpx.Response] = []
    with serving(tiny_folder, tmp_path / "log", *flags, "--drain-seconds", "50") as served:
        post(served, "/sleep")
        body = {"model": served.model(), "prompt": "abcd", "max_tokens": 9}
        late = threading.Thread(target=lambda: found.append(post(served, "/v1/completions", json=body)))
        late.start()
        time.sleep(2.0)
        assert not found
        began = time.monotonic()
    late.join()
    assert time.monotonic() - began < 40
    assert found[0].status_code == 503 and "being stopped" in found[0].text


def test_servers_that_were_not_made_for_it_have_no_such_routes(tiny_folder: Path, tmp_path: Path) -> None:
    with serving(tiny_folder, tmp_path / "log", "--platform", "reference") as served:
        for path in ("/sleep", "/wake_up", "/is_sleeping"):
            for method in ("GET", "POST", "PUT", "DELETE"):
                assert httpx.request(method, f"{served.url}{path}", timeout=30).status_code == 404
        assert "/sleep" not in httpx.get(f"{served.url}/openapi.json", timeout=30).json()["paths"]


@pytest.mark.parametrize("has_admin", [True, False])
def test_an_administrator_s_key_alone_changes_a_server_with_keys(
    has_admin: bool, tiny_folder: Path, tmp_path: Path
) -> None:
    flags = ("--platform", "reference", "--enable-sleep-mode", "--api-key", "client")
    admin = ("--admin-api-key", "admin") if has_admin else ()
    with serving(tiny_folder, tmp_path / "log", *flags, *admin) as served:

        def status(method: str, path: str, key: str) -> int:
            headers = {"authorization": f"Bearer {key}"} if key else {}
            return httpx.request(method, f"{served.url}{path}", headers=headers, timeout=30).status_code

        for method, path in (("POST", "/sleep"), ("GET", "/is_sleeping"), ("POST", "/wake_up")):
            for key in ("", "client", "wrong"):
                assert status(method, path, key) == (401 if has_admin else 403), (path, key)
            assert status(method, path, "admin") == (200 if has_admin else 403)
        assert status("GET", "/v1/models", "admin") == 401, "an administrator's key is no client's"
        assert status("GET", "/v1/models", "client") == 200


def test_one_key_for_both_is_refused() -> None:
    with pytest.raises(ConfigError, match="admin keys is a client's key too"):
        ServerConfig(api_key=("same", "other"), admin_api_key=("same",)).check()
