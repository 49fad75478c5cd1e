"""Write a trained model as an ONNX file.

Needs the packages of the extra `export`. `apps.export.step` describes the inputs and outputs.
"""

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnx_ir.passes.common import ClearMetadataAndDocStringPass
from torch.export import Dim, ExportedProgram

from apps.export.step import ExportedStep
from runtime.errors import ConfigError
from runtime.text import shown

# torch's exporter writes this version; it would only convert to others.
_OPSET = 18
# A protobuf message is smaller than 2 GiB. Tensors of more bytes go into a separate file.
_MAX_MESSAGE = 2**31 - 2**27
# Outputs of every step of the recurrence. The others are outputs of the last step only.
_OF_EACH_STEP = ("answers", "q_halt")

Shapes = tuple[dict[str, dict[int, Dim]]]


def write_onnx(
    step: ExportedStep, path: Path, facts: Mapping[str, str], *, single_step: bool = False
) -> None:
    """Write a single step or the recurrence as ONNX. The tensors of a very large model go into
    NAME.data beside it.

    A single step is as `ExportedStep` says. The recurrence has the inputs of a step without `new`,
    and int64 `num_steps`, 1 or more; the states are inputs only if starts are random. `answers`
    [num_steps, B, S] and `q_halt` [num_steps, B] hold all steps. The other outputs are of the last
    step; of the states only `next_candidates`.

    Raises:
        ConfigError: a part of the model cannot be exported.
    """
    given = step.zeros(1)
    with _exporting():
        program, shapes = _traced(step)
        written = torch.onnx.export(
            program,
            dynamo=True,
            dynamic_shapes=shapes,
            input_names=list(given),
            output_names=list(step(given)),
            opset_version=_OPSET,
            verbose=False,
        )
    assert written is not None
    model = written.model
    ClearMetadataAndDocStringPass()(model)  # The origin of each node: half of the file.
    if not single_step:
        _repeat(model.graph, step)
    model.metadata_props.update(facts)
    tensors = [value.const_value for value in model.graph.initializers.values()]
    size = sum(tensor.nbytes for tensor in tensors if tensor is not None)
    ir.save(model, path, external_data=f"{path.name}.data" if size > _MAX_MESSAGE else None)


def _traced(step: ExportedStep) -> tuple[ExportedProgram, Shapes]:
    """Return the step's program for batches of any size, and the dynamic sizes of its inputs."""
    given = step.zeros(2)
    batch = Dim("batch", min=1)
    shapes = ({name: {0: batch} for name in given},)
    with torch.no_grad():
        program = torch.export.export(
            step,
            (given,),
            dynamic_shapes=shapes,
            # Torch 2.11 cannot prove its assumptions on strides; `checking` tests the file.
            prefer_deferred_runtime_asserts_over_guards=True,
        )
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # It has paths of this machine.
    return program, shapes


def _repeat(graph: ir.Graph, step: ExportedStep) -> None:
    """Turn the graph of an ACT step into a Loop over steps; weights stay outside the loop.

    From step to step the body carries the states and the outputs of the last step.
    """
    given = {str(value.name): value for value in graph.inputs}
    gives = {str(value.name): value for value in graph.outputs}
    each = {name: gives.pop(name) for name in _OF_EACH_STEP if name in gives}
    states = {f"next_{name}": given.pop(name) for name in step.states}
    new = given.pop("new", None)
    nodes = list(graph)
    graph.remove(nodes)
    graph.inputs.clear()
    graph.outputs.clear()

    num_steps = ir.val("num_steps", ir.DataType.INT64, [])
    graph.inputs.extend([*given.values(), num_steps])
    batch = _add(graph, "Shape", [given["inputs"]], "batch_size", start=0, end=1)
    starts = {}
    for name, value in gives.items():
        if new is None and name in states:
            starts[name] = _like(value, str(states[name].name))
            graph.inputs.append(starts[name])
        else:
            starts[name] = _zeros(graph, value, batch, name)

    ends = {name: _like(value, name) for name, value in gives.items()}
    lists = {name: _like(value, name, "num_steps") for name, value in each.items()}
    before = {name: states.get(name) or _like(value, name) for name, value in gives.items()}
    for suffix, values in (("before", before), ("after", gives | each)):
        for name, value in values.items():  # Names inside the loop differ from names outside.
            value.name = f"{name}_{suffix}"
    body = _body(nodes, [*before.values()], [*gives.values(), *each.values()], new, batch)
    outputs = [*ends.values(), *lists.values()]
    inputs = [num_steps, None, *starts.values()]  # No condition: all steps run.
    graph.append(ir.node("Loop", inputs, {"body": body}, outputs=outputs))
    hidden = states.keys() - {"next_candidates"}
    graph.outputs.extend(lists.values())
    graph.outputs.extend(value for name, value in ends.items() if name not in hidden)


def _body(
    nodes: list[ir.Node],
    before: list[ir.Value],
    after: list[ir.Value],
    new: ir.Value | None,
    batch: ir.Value,
) -> ir.Graph:
    """Return the nodes of a step as the body of a Loop; all rows are `new` in the first one."""
    number = ir.val("step_number", ir.DataType.INT64, [])
    goes_on = ir.val("goes_on", ir.DataType.BOOL, [])
    body = ir.Graph([number, goes_on, *before], [], nodes=[], name="act_step")
    if new is not None:
        zero = _add(body, "Constant", [], "zero", value=ir.tensor(np.array(0, np.int64)))
        is_first = _add(body, "Equal", [number, zero], "is_first")
        body.append(ir.node("Expand", [is_first, batch], outputs=[new]))
    body.extend(nodes)
    body.outputs.extend([_add(body, "Identity", [goes_on], "still_goes_on"), *after])
    return body


def _zeros(graph: ir.Graph, like: ir.Value, batch: ir.Value, name: str) -> ir.Value:
    """Append nodes for zeros like a value, but with `batch` rows, int64 [1]; return the zeros."""
    assert like.shape is not None
    assert like.dtype is not None
    rest = ir.tensor(np.array(like.shape.dims[1:], np.int64))
    dims = _add(graph, "Constant", [], f"{name}_dims", value=rest)
    shape = _add(graph, "Concat", [batch, dims], f"{name}_shape", axis=0)
    zero = ir.tensor(np.zeros(1, like.dtype.numpy()))
    return _add(graph, "ConstantOfShape", [shape], f"{name}_zeros", value=zero)


def _add(
    graph: ir.Graph, kind: str, inputs: Sequence[ir.Value], name: str, **attributes: Any
) -> ir.Value:
    """Append a node to a graph and return its output."""
    output = ir.val(name)
    graph.append(ir.node(kind, inputs, attributes, outputs=[output]))
    return output


def _like(value: ir.Value, name: str, *dims: str) -> ir.Value:
    """Return a value of the same type and shape, with further dimensions in front."""
    assert value.shape is not None
    return ir.Value(name=name, type=value.type, shape=ir.Shape([*dims, *value.shape.dims]))


@contextmanager
def _exporting() -> Iterator[None]:
    """Silence the warnings and logs of torch's exporter; turn any error into a ConfigError."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ConfigError(f"the model cannot be exported: {shown(reason, 300)}") from error
    finally:
        log.setLevel(level)
