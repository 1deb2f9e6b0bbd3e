"""The next step for a job that ran out of memory, and the comparison of GPU sizes."""

from hypothesis import given
from hypothesis import strategies as st

from comfyrelay.domain.queue.memory import (
    GIB,
    OutOfMemoryStep,
    every_gpu_failed,
    in_gib,
    is_alone_on_gpu,
    is_larger,
    is_too_small,
    judge_out_of_memory,
    largest_gpu,
)
from comfyrelay.error_text import user_sentence
from comfyrelay.errors import OutOfMemory
from comfyrelay.worker.comfyui.out_of_memory import retry_line, too_large_message

sizes = st.integers(GIB // 2, 200 * GIB)


SMALL, LARGE = 8 * GIB, 24 * GIB


def judge(
    *untried: int | None, size: int | None = SMALL, failed: tuple[int | None, ...] = (), proven: bool = False
) -> OutOfMemoryStep:
    return judge_out_of_memory(size, untried=untried, failed=failed, has_run_elsewhere=proven)


def test_job_is_at_fault_only_after_every_server_was_tried() -> None:
    assert judge() is OutOfMemoryStep.NONE
    assert judge(failed=(LARGE,), proven=True) is OutOfMemoryStep.NONE
    for untried in (SMALL, GIB, LARGE, None):
        assert judge(untried) is not OutOfMemoryStep.NONE


def test_server_is_at_fault_while_an_equal_gpu_is_untried() -> None:
    assert judge(SMALL) is OutOfMemoryStep.ELSEWHERE
    assert judge(SMALL, LARGE) is OutOfMemoryStep.ELSEWHERE
    assert judge(None) is OutOfMemoryStep.ELSEWHERE
    assert judge(LARGE, size=None) is OutOfMemoryStep.ELSEWHERE


def test_server_is_at_fault_if_an_equal_gpu_has_completed_the_workflow() -> None:
    assert judge(LARGE, proven=True) is OutOfMemoryStep.ELSEWHERE


def test_gpu_is_too_small_if_only_larger_ones_are_left_or_a_second_one_failed() -> None:
    assert judge(LARGE) is OutOfMemoryStep.LARGER
    assert judge(LARGE, GIB) is OutOfMemoryStep.LARGER
    assert judge(SMALL, LARGE, failed=(SMALL,)) is OutOfMemoryStep.LARGER
    assert judge(SMALL, LARGE, failed=(GIB,)) is OutOfMemoryStep.ELSEWHERE


def test_final_error_names_the_memory_of_every_gpu() -> None:
    advice = "Use fewer pixels or frames, a smaller batch or a smaller model, or run it on a GPU with more memory."
    assert every_gpu_failed(f"KSampler: no memory. {advice}", [LARGE, LARGE, SMALL, None]) == (
        "KSampler: no memory. It was tried on every GPU that can run it: 2 × 24 GiB, 8 GiB, unknown size. " + advice
    )
    unknown = every_gpu_failed("KSampler: no memory", [None])
    assert unknown == f"KSampler: no memory. It was tried on every GPU that can run it. {advice}"
    long = every_gpu_failed("x" * 500, [LARGE, LARGE])
    # Operators read all of it.
    assert "x" * 500 in long
    sentence = user_sentence(long)
    assert len(sentence) == 300
    assert sentence.endswith(f"x… It was tried on every GPU that can run it: 2 × 24 GiB. {advice}")


@given(one=sizes, other=sizes)
def test_gpus_are_compared_by_their_memory(one: int, other: int) -> None:
    assert is_larger(one, other) is not is_too_small(one, other)
    assert not (is_larger(one, other) and is_larger(other, one))


def test_gpus_of_equal_or_unknown_size_are_not_larger() -> None:
    assert not is_larger(int(24.2 * GIB), 24 * GIB)
    assert is_larger(32 * GIB, 24 * GIB)
    assert not is_larger(None, GIB)
    assert not is_too_small(None, GIB)
    assert largest_gpu([None, 8 * GIB, 0, 24 * GIB]) == 24 * GIB
    assert largest_gpu([None, 0]) is None


def test_gpu_with_a_tenth_used_by_others_is_shared() -> None:
    assert is_alone_on_gpu(24 * GIB, 0)
    assert is_alone_on_gpu(20 * GIB, 2 * GIB)
    assert not is_alone_on_gpu(20 * GIB, 2 * GIB + 1)


def test_out_of_memory_error_names_the_memory_of_other_programs() -> None:
    error = OutOfMemory("KSampler (3): there was not enough memory")
    error.others_bytes = 6 * GIB
    assert too_large_message(error, {}) == (
        "KSampler (3): there was not enough memory, while other programs held 6 GiB of the GPU. "
        "Stop the other programs, or try again later."
    )
    assert retry_line(error).endswith("while other programs held 6 GiB of the GPU: it runs on another GPU.")


def test_out_of_memory_error_suggests_a_remedy() -> None:
    error = OutOfMemory("KSampler (3): there was not enough memory")
    error.gpu_bytes = 24 * GIB
    assert too_large_message(error, {}) == (
        "KSampler (3): there was not enough memory, even with the 24 GiB of the GPU to itself. Use fewer pixels or "
        "frames, a smaller batch or a smaller model, or run it on a GPU with more memory."
    )


def test_memory_sizes_are_rounded_to_common_values() -> None:
    assert [in_gib(size) for size in (25_757_220_864, int(23.6 * GIB), int(1.5 * GIB))] == [
        "24 GiB",
        "24 GiB",
        "1.5 GiB",
    ]
