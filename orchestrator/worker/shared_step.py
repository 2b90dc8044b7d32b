"""What all backends of one problem share in a step: the layers with their weights and inputs, and the step with the stand-in."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernels.adapter import Adapter, Runner
from kernels.device import Device
from kernels.inputs import Inputs
from kernels.inputs.tensors import other_cache, other_queries
from kernels.step.graph import Step, stand_in
from kernels.step.layer import Layer, make_layers
from kernels.step.layer_inputs import inputs_of_layer, refill
from kernels.step.series import Loads
from kernels.step.shapes import LayerShape
from kernels.step.size import StepSize, size_of
from kernels.timing.config import Timing


@dataclass(frozen=True)
class SharedStep:
    """The layers of a step. The first one has the inputs that the isolated call has, so it needs no further cache."""

    layers: list[Layer]
    shape: LayerShape
    stand_in: Step
    loads: Loads = field(default_factory=dict)

    @classmethod
    def build(cls, first: Inputs, shape: LayerShape, size: StepSize) -> SharedStep:
        """Makes inputs, weights and the step with the stand-in. Raises torch.OutOfMemoryError if the device is full."""
        layers = make_layers([first, *(inputs_of_layer(first, number) for number in range(1, size.layers))], shape)
        return cls(layers, shape, Step(layers, shape.hidden_size, [stand_in(layer) for layer in layers]))

    @property
    def further_inputs(self) -> list[Inputs]:
        return [layer.inputs for layer in self.layers[1:]]

    def refill(self) -> None:
        """Writes the values of the further layers into their tensors again, from those of the first."""
        for number, inputs in enumerate(self.further_inputs, start=1):
            refill(self.layers[0].inputs, inputs, number)

    def prepare(self, adapter: Adapter, first: Runner, device: Device) -> tuple[list[Runner], Step]:
        """A runner per layer, `first` among them, and the step. RuntimeError for another kernel or order of queries."""
        if first.rows is not None:
            raise RuntimeError("a step needs the requests of the decode call first in batch_spec, such as 15q4s8k_q1s8k")
        runners = [first, *(_prepared(adapter, inputs, device) for inputs in self.further_inputs)]
        for number, runner in enumerate(runners, start=1):
            if runner.resolved_backend != first.resolved_backend:
                raise RuntimeError(f"layer {number} runs {runner.resolved_backend}, layer 1 {first.resolved_backend}")
        attention = [(runner, runner.out) for runner in runners]
        return runners, Step(self.layers, self.shape.hidden_size, attention, shares_with=self.stand_in)


def _prepared(adapter: Adapter, inputs: Inputs, device: Device) -> Runner:
    """The runner of a layer, prepared and called among other values, as `PointRunner` does with the first one."""
    with other_cache(inputs):
        with other_queries(inputs):
            runner = adapter.prepare(inputs, device)
            runner()
        runner()
    runner.refresh()
    return runner


def make_step(first: Inputs, timing: Timing, shape: LayerShape | None, device: Device, memory_fraction: float) -> SharedStep | None:
    """The step of a problem, or None if it is not asked for."""
    if timing.context != "step" or shape is None:
        return None
    room = int(device.memory_bytes * memory_fraction)
    return SharedStep.build(first, shape, size_of(first.problem, shape, device.tb_per_sec, room, timing.step_layers))
