"""Columns on the cost of a point and the place where it ran."""

from __future__ import annotations

from typing import Annotated, TypedDict

from orchestrator.storage.columns.kinds import About, FromColumn


class CostColumns(TypedDict, total=False):
    """What the row cost: seconds of wall time, and memory."""

    compile_s: Annotated[float | None, About("Compiling the point's kernel modules in this run. Null if none were.", "s")]
    inputs_s: Annotated[float | None, About("Drawing the inputs. Paid by the first point of the shared-input group.", "s")]
    check_s: Annotated[float | None, About("Checks, and the reference if this point is the group's first.", "s")]
    measure_s: Annotated[float | None, About("Planning, warm-up, graph capture and the samples, without rests.", "s")]
    rest_s: Annotated[float | None, About("Waiting between blocks, so that the device is not throttled.", "s")]
    total_s: Annotated[float | None, About("The point's whole time on its worker, with rests and without compilation.", "s")]
    peak_mem_bytes: Annotated[
        int | None,
        About("Most device memory while the point was prepared and checked, without other backends of the group.", "bytes"),
    ]


class ProvenanceColumns(TypedDict, total=False):
    """Where and when the row was made, and the state of the device meanwhile."""

    cluster: Annotated[str, About("Name of the cluster, its address for cluster=ray, or the file an imported row came from.")]
    device_name: Annotated[str, About("The kind of device, or all kinds (joined by |) that a point not started could have used.")]
    device_uuid: Annotated[str | None, About("The uuid of this GPU, from the driver.")]
    compute_capability: Annotated[str | None, About("CUDA compute capability, such as 9.0. Null on a CPU.")]
    device_modes: Annotated[str | None, About("ECC, MIG and persistence mode, such as ecc=on mig=off persistence=on.")]
    driver: Annotated[str | None, About("Version of the NVIDIA driver.")]
    cuda: Annotated[str | None, About("CUDA version of the installed torch.")]
    torch_version: Annotated[str | None, About("Version of torch.")]
    libraries: Annotated[
        str | None,
        About(
            "The backend's kernel packages with versions, such as flashinfer-python 0.7.2. In older rows FlashInfer's.",
            default=FromColumn("flashinfer_version", prefix="flashinfer-python "),
        ),
    ]
    flashinfer_version: Annotated[str | None, About("Version of flashinfer-python, also if the backend is not from it.")]
    ray_version: Annotated[str | None, About("Version of Ray.")]
    orchestrator_version: Annotated[str, About("Release and git commit of this project, and a hash of the code if it was edited.")]
    host: Annotated[str | None, About("Name of the machine. Null if no worker ran the point.")]
    node_id: Annotated[str | None, About("Ray's id of the machine.")]
    sm_clock_mhz: Annotated[int | None, About("Median SM clock during the samples.", "MHz")]
    mem_clock_mhz: Annotated[int | None, About("Median memory clock during the samples.", "MHz")]
    temperature_c: Annotated[int | None, About("Highest temperature of the GPU during the samples.", "°C")]
    power_w: Annotated[float | None, About("Highest power draw of the GPU during the samples.", "W")]
    throttle_reasons: Annotated[str | None, About("Reasons for throttling during any sample, by NVML's names, or none.")]
    other_processes: Annotated[str | None, About("Other processes that used the GPU around the samples. Null if none did.")]
    started_at: Annotated[str, About("When the point was started.", "UTC", timestamp=True)]
    finished_at: Annotated[str, About("When the row was finished.", "UTC", timestamp=True)]
