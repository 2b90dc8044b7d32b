"""Traffic: lengths from a file, points to measure, and weights of shapes."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from orchestrator.analysis import traffic
from orchestrator.analysis.traffic import Mix, TrafficPoint
from orchestrator.config.settings import load
from orchestrator.errors import UserError
from orchestrator.reporting import records
from orchestrator.reporting.report import dataset_grids
from orchestrator.storage.row import to_table
from tests.helpers.command_line import Invoke, composed
from tests.helpers.noted import noted
from tests.helpers.timed_rows import made

METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 12.0
vllm:num_requests_running{engine="1",model_name="m"} 0.0
# TYPE vllm:request_prompt_tokens histogram
vllm:request_prompt_tokens_bucket{engine="0",le="1000.0",model_name="m"} 5.0
vllm:request_prompt_tokens_bucket{engine="1",le="1000.0",model_name="m"} 5.0
vllm:request_prompt_tokens_bucket{engine="0",le="3000.0",model_name="m"} 40.0
vllm:request_prompt_tokens_bucket{engine="0",le="+Inf",model_name="m"} 40.0
vllm:request_prompt_tokens_sum{engine="0",model_name="m"} 61000.0
vllm:request_generation_tokens_bucket{engine="0",le="200.0",model_name="m"} 3.0
vllm:request_generation_tokens_bucket{engine="0",le="+Inf",model_name="m"} 4.0 1700000000000
"""


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "traffic.txt"
    path.write_text(text)
    return str(path)


def requests(*lengths: tuple[int, int]) -> str:
    """A trace as Mooncake publishes it."""
    lines = ({"timestamp": i, "input_length": p, "output_length": o, "hash_ids": [i]} for i, (p, o) in enumerate(lengths))
    return "".join(json.dumps(line) + "\n" for line in lines)


def test_a_request_weighs_as_many_decode_steps_as_it_has_output_tokens(tmp_path: Path):
    mix = traffic.read(written(tmp_path, requests((1000, 100), (9000, 300), (50, 0))))
    (whole,) = traffic.points(mix, 1)
    exact = sum([*range(1001, 1101), *range(9001, 9301)]) / 400

    assert sum(point.weight for point in mix.decode) == 400
    assert (whole.batch_size, whole.weight) == (None, pytest.approx(1))
    assert whole.s_kv == pytest.approx(exact, abs=1)
    assert [point.s_kv for point in mix.prompts] == [1000, 9000, 50]


def test_points_are_quantiles_of_equal_weight_and_keep_the_mean(tmp_path: Path):
    mix = traffic.read(written(tmp_path, "".join(json.dumps({"s_kv": s, "weight": 2}) + "\n" for s in range(1000, 3000, 7))))
    points = traffic.points(mix, 4)
    mean = sum(p.s_kv * p.weight for p in mix.decode) / sum(p.weight for p in mix.decode)

    assert [point.weight for point in points] == pytest.approx([0.25] * 4)
    assert sum(point.s_kv * point.weight for point in points) == pytest.approx(mean, abs=1)
    assert [point.s_kv for point in points] == sorted(point.s_kv for point in points)


def test_batches_of_a_file_stay_with_their_lengths(tmp_path: Path):
    lines = [{"batch_size": b, "s_kv": s, "weight": w} for b, s, w in ((1, 100, 3), (64, 5000, 1))]
    points = traffic.points(traffic.read(written(tmp_path, "\n".join(map(json.dumps, lines)))), 5)

    assert [(p.batch_size, p.s_kv, pytest.approx(p.weight)) for p in points] == [(1, 100, 0.75), (64, 5000, 0.25)]


def test_many_batch_sizes_become_four_and_no_weight_is_lost():
    mix = Mix(tuple(TrafficPoint(batch, 100 * batch, 1) for batch in range(1, 101)), ())
    points = traffic.points(mix, 2)

    assert len({point.batch_size for point in points}) == 4
    assert sum(point.weight for point in points) == pytest.approx(1)


def test_vllms_histograms_are_added_over_engines_and_say_what_was_assumed(tmp_path: Path):
    mix = traffic.read(written(tmp_path, METRICS))
    by_prompt = {point.s_kv: point.weight for point in mix.prompts}

    assert by_prompt == {500.0: 10.0, 2000.0: 30.0}
    assert {point.batch_size for point in mix.decode} == {12}
    assert any("independent" in note for note in mix.notes)
    assert any("25% of vllm:request_generation_tokens lie above the last bucket, at 200" in note for note in mix.notes)


SAMPLES = [
    ("a trace of Mooncake", [{"timestamp": 0, "input_length": 1024, "output_length": 128}]),
    ("vllm bench serve", {"num_prompts": 1, "total_input_tokens": 1024, "input_lens": [1024], "output_lens": [128]}),
    ("SGLang's bench_serving", {"backend": "sglang", "input_lens": [1024], "output_lens": [128], "itls": [[0.1]]}),
    (
        "AIPerf",
        {"metrics": {"input_sequence_length": {"value": 1024}, "output_sequence_length": {"value": 128}}},
    ),
    ("a log of OpenAI's answers", {"response": {"body": {"usage": {"prompt_tokens": 1024, "completion_tokens": 128}}}}),
    ("Azure's traces", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,1024,128\n"),
    ("BurstGPT", "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,1024,128,1152,API log\n"),
    ("GuideLLM", {"benchmarks": [{"requests": {"successful": [{"prompt_tokens": 1024, "output_tokens": 128}], "errored": []}}]}),
    ("Anthropic", '{"usage": {"input_tokens": 4, "cache_read_input_tokens": 1000, "cache_creation_input_tokens": 20, "osl": 128}}'),
    ("Bedrock", {"usage": {"inputTokens": 0, "cacheReadInputTokens": 1024, "outputTokens": 128}}),
    ("Gemini", {"usageMetadata": {"promptTokenCount": 1024, "candidatesTokenCount": 100, "thoughtsTokenCount": 28}}),
    ("LLMPerf", [{"number_input_tokens": 1024, "number_output_tokens": 128}]),
    ("genai-bench", {"individual_request_metrics": [{"num_input_tokens": 1024, "num_output_tokens": 128}]}),
    ("Ollama", {"prompt_eval_count": 1024, "eval_count": 128}),
    ("llama.cpp", {"timings": {"cache_n": 24, "prompt_n": 1000, "predicted_n": 128}}),
    ("Splitwise", "arrival_timestamp,prompt_size,token_size\n0.0,1024,128\n"),
    ("flattened", {"usage.prompt_tokens": 1024, "usage.completion_tokens": 128}),
    ("OpenTelemetry", {f"gen_ai.usage.{n}_tokens": v for n, v in (("input", 1024), ("cache_read.input", 9), ("output", 128))}),
    ("semicolons", "ContextTokens;GeneratedTokens\r\n1,024;128\r\n"),
    ("tabs", "time\tContextTokens\tGeneratedTokens\n1,5\t1024\t128\n"),
    ("thousands", 'ContextTokens,GeneratedTokens\n"1,024",128\n'),
    ("OpenRouter", "generation_id,tokens_prompt,tokens_completion,tokens_reasoning\na,1024,128,9\n"),
    ("tokens themselves", {"prompt_token_ids": [7] * 1024, "output_token_ids": [7] * 128}),
    ("a dataset of TensorRT-LLM", {"task_id": 0, "input_ids": [7] * 1024, "output_tokens": 128}),
    ("numbers of pandas", '{"prompt_len": 1024.0, "output_len": 128.0}'),
]


@pytest.mark.parametrize("content", [pytest.param(content, id=name) for name, content in SAMPLES])
def test_lengths_are_read_under_the_names_of_each_benchmark(tmp_path: Path, content: object):
    text = content if isinstance(content, str) else json.dumps(content, indent=2)
    mix = traffic.read(written(tmp_path, text))

    assert [point.s_kv for point in mix.prompts] == [1024]
    assert [round(point.s_kv) for point in traffic.points(mix, 5)] == [1038, 1062, 1088, 1114, 1138]


@pytest.mark.parametrize(
    ("text", "unread"),
    [
        ("batch_size,s_kv,weight\n8,8192,80\n16,1024,20\n", ""),
        ("batch_size,s_kv,share\n8,8192,80%\n16,1024,20%\n", ""),
        ("Batch,Context,Share\n8,8192,0.8\n16,1024,0.2\n", ""),
        ("zone;batch;kv_len;percent;note;\na;8;8192;80;b;\n;16;1024;20;;\n", "not read (2): note, zone"),
        ('{"batch": 8, "s_kv": 8192, "share": 4, "wieght": 1}\n{"batch": 16, "context": 1024}\n', "not read (1): wieght"),
    ],
)
def test_steps_are_read_under_plain_names_with_their_weights_and_what_is_not_read_is_named(tmp_path: Path, text: str, unread: str):
    mix, said = noted(lambda: traffic.read(written(tmp_path, text)))
    points = [(point.batch_size, point.s_kv, point.weight) for point in traffic.points(mix, 5)]

    assert points == [(8, 8192, pytest.approx(0.8)), (16, 1024, pytest.approx(0.2))]
    assert said.strip() == (unread and f"note: left out: traffic.txt:1: {unread}")


def test_a_request_counts_by_its_weight_and_one_of_many_does_not(tmp_path: Path):
    columns = "id,context,prompt_tokens,completion_tokens,share\n"
    mix, said = noted(lambda: traffic.read(written(tmp_path, f"{columns}a,chat,100,10,75%\nb,code,9000,10,25%\n")))
    whole = traffic.read(written(tmp_path, '{"count": 2, "requests": [{"isl": 5, "osl": 1}]}\n{"isl": 9, "osl": 1, "id": 7}\n'))

    assert [(point.s_kv, point.weight) for point in mix.prompts] == [(100, 0.75), (9000, 0.25)]
    assert sum(point.weight for point in mix.decode if point.s_kv < 9000) == pytest.approx(7.5)
    assert "not read (2): context, id" in said
    assert [point.weight for point in whole.prompts] == [1, 1]


ONE, MANY = {"prompt_tokens": 1024, "completion_tokens": 128}, {"prompt_tokens": 20_000, "completion_tokens": 4000}


@pytest.mark.parametrize(
    ("record", "passed"),
    [
        ({**MANY, "requests": [ONE]}, "prompt_tokens"),
        ({"summary": MANY, "data": {"requests": [{"usage": ONE}]}}, "summary.prompt_tokens"),
        ({"benchmarks": [{**MANY, "requests": [ONE]}]}, "benchmarks.prompt_tokens"),
        ({**MANY, "input_lens": [1024], "output_lens": [128], "usage": MANY}, "usage.prompt_tokens"),
        ({"requests": [ONE], "metrics": {"prompt_tokens": {"mean": 5}, "output_tokens": {}}}, "metrics.prompt_tokens"),
        (
            {**MANY, "data": [{"input_tokens": 1020, "cache_read_input_tokens": 4, "osl": 128}, {"input_tokens": 1024, "osl": 9}]},
            "prompt_tokens",
        ),
        ({"usage": ONE, "timings": {"num_prompt_tokens": 1, "output_tokens": 9}}, "timings.num_prompt_tokens"),
    ],
)
def test_requests_go_before_totals_which_are_named(tmp_path: Path, record: dict[str, object], passed: str):
    mix = traffic.read(written(tmp_path, json.dumps(record)))

    assert {point.s_kv for point in mix.prompts} == {1024}
    assert mix.notes[-1] == f"lengths passed over beside those that were taken (1): {passed}"


def test_percentiles_of_a_summary_are_shares_of_lengths(tmp_path: Path):
    """As GenAI-Perf and AIPerf summarise a run: profile_export_genai_perf.json."""
    of_prompt = {"unit": "tokens", "avg": 150, "min": 100, "p50": 100, "max": 200, "std": 9}
    summary = {"input_sequence_length": of_prompt, "output_sequence_length": {"avg": 10, "p25": 10, "p99": 10}}
    mix = traffic.read(written(tmp_path, json.dumps(summary)))

    assert [(point.s_kv, point.weight) for point in mix.prompts] == [(100, 0.5), (150, 0.5)]
    assert "since percentiles do not pair them" in mix.notes[1]


@pytest.mark.parametrize(
    "text",
    [
        "Metric,avg,min,p50,max\nInput Sequence Length (tokens),9,100.0,100.0,200.0\nOSL,10,10,10,10\n\nMetric,Value\nCount,2\n",
        '{"isl_stats": {"minimum": 100, "maximum": 200, "average": 9, "percentiles": {"p50": 100}}, "osl_stats": {"value": 10}}',
    ],
    ids=["GenAI-Perf's CSV", "trtllm-bench"],
)
def test_summaries_of_other_forms_are_the_same(tmp_path: Path, text: str):
    assert [(point.s_kv, point.weight) for point in traffic.read(written(tmp_path, text)).prompts] == [(100, 0.5), (150, 0.5)]


@pytest.mark.parametrize(
    "names",
    [
        ("sglang:prompt_tokens_histogram", "sglang:generation_tokens_histogram", "sglang:num_running_reqs"),
        (
            "dynamo_frontend_input_sequence_tokens",
            "dynamo_frontend_output_sequence_tokens",
            "dynamo_frontend_inflight_requests",
        ),
    ],
)
def test_other_engines_have_the_same_histograms_under_other_names(tmp_path: Path, names: tuple[str, str, str]):
    own, text = traffic.read(written(tmp_path, METRICS)), METRICS
    for name, other in zip(("request_prompt_tokens", "request_generation_tokens", "num_requests_running"), names, strict=True):
        text = text.replace(f"vllm:{name}", other)
    mix = traffic.read(written(tmp_path, text))

    assert (mix.decode, mix.prompts) == (own.decode, own.prompts)


def test_repeated_blocks_of_prompts_are_named_as_unused(tmp_path: Path):
    lines = [{"input_length": 8000, "output_length": 9, "hash_ids": [*range(15), last, last]} for last in (15, 16)]
    mix = traffic.read(written(tmp_path, "\n".join(map(json.dumps, lines))))

    assert "15 of 32 blocks of prompts (hash_ids) repeat earlier ones" in mix.notes[1]


def test_requests_without_output_are_named(tmp_path: Path):
    result = {"input_lens": [10, 20], "output_lens": [5, 0], "errors": ["", "Connection reset"]}

    assert "prompts alone: 1" in traffic.read(written(tmp_path, json.dumps(result))).notes[-1]


def test_a_line_without_lengths_is_named_and_the_others_count(tmp_path: Path):
    path = written(tmp_path, '{"text_input": "hello", "output_length": 400}\n' + requests((2400, 300)))
    mix, said = noted(lambda: traffic.read(path))

    assert [point.s_kv for point in mix.prompts] == [2400]
    assert "left out: traffic.txt:1: neither s_kv nor input_length with output_length" in said


def test_weights_go_to_the_nearest_shape_and_name_what_is_far_from_all():
    mix = Mix((TrafficPoint(8, 1000, 3), TrafficPoint(8, 60_000, 1)), ())
    found = traffic.weights(mix, [(1, 1024), (8, 1024), (8, 8192), (64, 65_536)])

    assert found.by_workload == {(1, 1024): 0, (8, 1024): pytest.approx(0.75), (8, 8192): pytest.approx(0.25), (64, 65_536): 0}
    assert found.far_share == pytest.approx(0.25)


def test_a_batch_that_was_not_measured_is_far_beyond_twice_the_nearest_and_named():
    """Each batch size by itself: a hundred of them are not put together to four, of which all would be near."""
    mix = Mix(tuple(TrafficPoint(batch, 1000, 1) for batch in range(1, 101)), ())
    found = traffic.weights(mix, [(8, 1024), (32, 1024)])

    assert found.far_share == pytest.approx((3 + 36) / 100)  # 1 to 3 and 65 to 100
    assert found.by_workload == {(8, 1024): pytest.approx(0.16), (32, 1024): pytest.approx(0.84)}
    assert traffic.axes_to_measure(found) == "sweep.batch_size=[2,100] sweep.s_kv=[1000]"


def test_traffic_without_batches_is_spread_over_those_that_were_measured():
    found = traffic.weights(Mix((TrafficPoint(None, 1000, 1),), ()), [(1, 1024), (8, 1024)])

    assert found.by_workload == {(1, 1024): pytest.approx(0.5), (8, 1024): pytest.approx(0.5)}


@pytest.mark.parametrize(
    ("measured", "axes"),
    [
        ([(1, 8192), (8, 8192)], "sweep.s_kv=[1100]"),
        ([(512, 2048), (8, 1024), (8, 8192)], "sweep.batch_size=[512] sweep.s_kv=[8000]"),
        (
            [(8, 8192), (512, 2048), (1, 8192)],
            "sweep.batch_size=[1,8] sweep.s_kv=[1100]; sweep.batch_size=[512] sweep.s_kv=[8000]",
        ),
    ],
)
def test_measured_batches_are_named_with_the_contexts_that_each_of_them_lacks(measured: list[tuple[int, int]], axes: str):
    mix = Mix((TrafficPoint(None, 1100, 1), TrafficPoint(None, 8000, 1)), ())

    assert traffic.axes_to_measure(traffic.weights(mix, measured)) == axes


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is empty"),
        ("[]", "it has no requests"),
        ("input_length,output_length\n", "it has no requests"),
        ("{\n", ":1: no JSON"),
        ("[" * 100_000, ":1: no JSON"),
        ("[3]", ":1: no JSON object"),
        ("1 2 3\n", "neither a comment nor a sample"),
        ('{"input_lens": [5, 6], "output_lens": [3]}', "input_lens has 2 lengths and output_lens has 1; allowed: as many of both"),
        ('{"total_input_tokens": 5, "completed": 1}', "vllm bench serve needs --save-detailed, SGLang --output-details"),
        ('{"input_sequence_length": {"unit": "tokens"}, "osl": 3, "output_len": 3}', "has neither a value nor percentiles"),
        ("ContextTokens,GeneratedTokens\nmany,3\n", ":2: ContextTokens='many': allowed: a whole number"),
        ("prompt_tokens,n\n3,4\n", "its columns are prompt_tokens, n; allowed: batch_size,s_kv,weight, or lengths such as"),
        ("a;b\n3;4\n", "its columns are a, b; allowed: batch_size,s_kv,weight, or"),
        ("x" * 200_000 + ",y\n", "field larger than field limit"),
        ("ContextTokens;GeneratedTokens\n1,5;3\n", ":2: ContextTokens='1,5': allowed: a whole number"),
        ("{" * 100_000, ":1: no JSON"),
        ('{"a": 1}\n', "neither s_kv nor input_length"),
        ('{"s_kv": true}\n', "s_kv=True: allowed: a whole number"),
        ('{"s_kv": 1e400}\n', "s_kv=inf"),
        ('{"s_kv": 5, "weight": NaN}\n', "weight=nan"),
        ('{"s_kv": 5, "weight": 1e308}\n', "weight=1e+308: allowed: a number from 0 to 1,000,000,000,000,000"),
        ('{"s_kv": 5, "weight": 0}\n', "weight=0: allowed: a number above 0"),
        (METRICS.replace("40.0", "1e308"), "1e308: allowed: a number from 0 to 1e+15"),
        (METRICS.replace('le="1000.0"', 'le="1e300"'), "1e300: allowed: a number from 0 to 1e+15"),
        ("s_kv,share\n5,0%\n", "share=0: allowed: a number above 0"),
        ("s_kv,share\n5,much\n", "share='much': allowed: a number"),
        ("s_kv,weight\n20%,1\n", "s_kv=0.2: allowed: a whole number"),
        ('{"s_kv": 5, "batch_size": 0}\n', "batch_size=0"),
        ('{"s_kv": 5, "batch_size": 1}\n{"s_kv": 5}\n', "1 of 2 lines have a batch_size"),
        (requests((-5, 1)), "input_length=-5"),
        (requests((5, 0)), "nothing is decoded"),
        ("up 1\n", "no vllm:request_prompt_tokens_bucket"),
        (METRICS.replace('le="1000.0",', ""), "a bucket without le"),
        (METRICS.replace("40.0", "2.0"), "falls from 10 to 2"),
        (METRICS.replace('le="+Inf"', 'le="9e9"'), 'has no bucket le="+Inf"'),
        (METRICS.replace(" 40.0", " NaN"), "NaN: allowed: a number from 0"),
        ("\n".join('{"s_kv": 0}' for _ in range(30)), ":1: s_kv=0: allowed: a whole number from 1 to 100,000,000 (so in 30 lines)"),
    ],
)
def test_a_damaged_file_is_named_in_words(tmp_path: Path, text: str, words: str):
    with pytest.raises(UserError) as caught:
        traffic.read(written(tmp_path, text))

    assert words in str(caught.value)
    assert "traffic" in str(caught.value)


def test_bytes_and_folders_are_no_traffic(tmp_path: Path):
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for path, words in (
        (tmp_path / "bytes", "no text in UTF-8"),
        (tmp_path, "cannot be read"),
        (tmp_path / "none", "No such file"),
    ):
        with pytest.raises(UserError, match=words):
            traffic.read(str(path))


def test_a_report_weighs_the_fastest_backends_by_traffic(tmp_path: Path):
    shape = {"routine": "paged_decode", "l2": "clean", "mask": "causal", "batch_size": 8}
    times = {("a", 8192): 10.0, ("b", 8192): 20.0, ("a", 32_768): 40.0, ("b", 32_768): 30.0}
    rows = [made(backend, us, **{**shape, "s_kv": s_kv}) for (backend, s_kv), us in times.items()]
    pq.write_table(to_table(rows), tmp_path / "rows.parquet")
    path = written(tmp_path, requests((30_000, 300), (8000, 100)))
    asked = ("mode=report", "question=best", f"traffic={path}", f"results.path={tmp_path}")
    first, *_ = dataset_grids(load(composed(*asked)), "best")

    no_batch = "no batch sizes, so a report counts all measured ones alike; for one type where={batch_size: N}"
    assert first.title == f"your traffic, all of it in each line; {no_batch}"
    assert first.cells == (("m · q bf16, kv bf16 · clean L2 · H200", "1", "b 75%, a 25%"),)
    settings = load(composed(*(word.replace("=best", "=one_backend") for word in asked)))
    answer = io.StringIO()
    records.write(settings.model_copy(update={"format": "json"}), answer)

    assert dataset_grids(settings, "one_backend")[0].cells[0][1:] == ("decode", "1", "8 × 32,768: 75%, 8 × 8,192: 25%")
    assert {record["s_kv"]: record["weight"] for record in json.loads(answer.getvalue())} == {8192: 0.25, 32_768: 0.75}


def test_rows_of_an_answer_tell_of_far_traffic_and_refuse_what_has_no_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    pq.write_table(to_table([made("fa2_tc", 10.0, routine="paged_decode", mask="causal", batch_size=8)]), tmp_path / "rows.parquet")
    path = written(tmp_path, '{"batch_size": 50, "s_kv": 8000}\n')
    asked = ("mode=report", "question=one_backend", f"traffic={path}", f"results.path={tmp_path}")
    records.write(load(composed(*asked, "format=csv")), io.StringIO())

    assert "note: traffic: 100% of it has no measured workload near it" in capsys.readouterr().err
    with pytest.raises(UserError, match="the rows of question=best have no weights"):
        records.write(load(composed(*(word.replace("one_backend", "best") for word in asked), "format=csv")), io.StringIO())


def test_only_two_questions_are_weighed():
    with pytest.raises(UserError, match="it weighs two answers; type question=one_backend or"):
        load(composed("mode=report", "question=regret", "traffic=a.jsonl", "results.path=results/x"))


@pytest.mark.parametrize("sign", ["\u2028", "\u2029", "\u0085"])
def test_a_line_ends_at_a_newline_alone(sign: str, tmp_path: Path):
    mix = traffic.read(written(tmp_path, f'{{"s_kv": 5, "note": "a{sign}b"}}\n{{"s_kv": 6}}\n'))

    assert [entry.s_kv for entry in mix.decode] == [5, 6]


def test_few_contexts_keep_their_own_weights(tmp_path: Path):
    lines = [f'{{"s_kv": {s_kv}, "batch_size": 8, "weight": 1}}' for s_kv in (100, 200, 300)]

    assert [point.weight for point in traffic.read(written(tmp_path, "\n".join(lines))).fine_decode] == pytest.approx([1 / 3] * 3)


def test_traffic_of_steps_without_drafts_has_no_line_of_drafts(tmp_path: Path, invoke: Invoke):
    typed = ("question=one_backend", "model=llama_3_1_70b", "tp=4", "device=h200", "engine=vllm", "format=markdown")
    path = written(tmp_path, requests((8000, 500)))
    both, alone = (invoke("mode=report", *typed, f"traffic={path}", *more).stdout for more in ((), ("drafts=0",)))

    assert "| drafts | 4 |" in both and "drafts | 4" not in alone and "| decode | 1 |" in alone
