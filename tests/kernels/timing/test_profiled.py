"""What a profile says of parts of the host's work: made profiles, no GPU."""

from __future__ import annotations

import pytest

from kernels.timing.profiled import PART, Event, Work, WorkUnknown, work_of

US = 1000  # ns


def part(start_us: int, us: int = 100) -> Event:
    return Event(PART, False, start_us * US, us * US)


def host(name: str, start_us: int) -> Event:
    return Event(name, False, start_us * US, US)


def device(name: str, start_us: int, us: int = 2) -> Event:
    return Event(name, True, start_us * US, us * US)


PLAN = [
    part(1000),
    host("aten::copy_", 1001),
    host("cudaMemcpyAsync", 1002),
    host("cudaStreamSynchronize", 1003),
    host("cudaEventSynchronize", 1004),
    host("cudaMemcpyAsync", 1010),
    host("cudaLaunchKernel", 1020),
    device("Memcpy DtoH (Device -> Pageable)", 1005),
    device("Memcpy HtoD (Pinned -> Device)", 1012),
    device("Memcpy HtoD (Pageable -> Device)", 1014, 3),
    device("Memcpy DtoD (Device -> Device)", 1016),
    device("Memset (Device)", 1030),
    device("void prepare_varlen_num_blocks_kernel<1, true>(int)", 1150, 5),  # ends after the host has returned
    host("cudaDeviceSynchronize", 1200),  # between the parts: nobody's
]
CALL = [part(5000), host("cudaLaunchKernelExC", 5001), device("BatchPrefillWithPagedKVCacheKernel", 5010, 20)]


def test_copies_waits_and_kernels_belong_to_the_part_that_asked_for_them():
    plan, call = work_of([*PLAN, *CALL], 2)

    assert plan == Work(syncs=2, d2h_copies=1, h2d_copies=2, kernels=3, device_us=16.0)
    assert call == Work(syncs=0, d2h_copies=0, h2d_copies=0, kernels=1, device_us=20.0)


def test_the_order_of_the_profile_does_not_matter():
    assert work_of(list(reversed([*PLAN, *CALL])), 2) == work_of([*PLAN, *CALL], 2)


@pytest.mark.parametrize("name", ["cudaMemcpy", "cudaDeviceSynchronize", "cuStreamSynchronize"])
def test_each_wait_of_the_host_counts(name: str):
    assert work_of([part(0), host(name, 1)], 1)[0].syncs == 1


@pytest.mark.parametrize("name", ["cudaMemcpyAsync", "cudaLaunchKernel", "cudaEventQuery", "cudaStreamWaitEvent"])
def test_calls_that_do_not_wait_do_not_count(name: str):
    assert work_of([part(0), host(name, 1)], 1)[0].syncs == 0


def test_waits_and_annotations_that_a_profile_lists_on_the_device_are_no_kernels():
    events = [part(0), device(PART, 1), device("Stream Sync", 2), device("Event Sync", 3), device("Context Sync", 4)]

    assert work_of(events, 1)[0] == Work(0, 0, 0, 0, 0.0)


def test_what_ran_before_the_first_part_is_nobodys():
    assert work_of([device("kernel", 1), host("cudaStreamSynchronize", 2), part(1000)], 1)[0] == Work(0, 0, 0, 0, 0.0)


def test_a_profile_that_lost_a_part_counts_nothing():
    with pytest.raises(WorkUnknown, match="1 of 2 parts"):
        work_of(PLAN, 2)
