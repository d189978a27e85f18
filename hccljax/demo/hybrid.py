"""``python -m hccljax.demo.hybrid``: a transformer trained with data, pipeline and tensor parallelism at once.

Eight forced CPU devices are a mesh of 2 data ranks × 2 stages × 2 model ranks. Each step is compared with that of one
device: losses and parameters have to agree.
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from hccljax.demo import data
from hccljax.demo.devices import cpu_mesh
from hccljax.demo.transformer import SPECS, Params, Shape, initial, loss, on_one_device, scores, spread_value_and_grad

BATCH, MICROBATCHES, EPOCHS, RATE = 64, 4, 8, 0.1
TOLERANCE = 1e-3
"""The largest difference of any parameter that float32 sums in another order may make over the steps of training."""


def hybrid_mesh() -> Mesh:
    """2 × 2 × 2 forced CPU devices; call it before anything has started a JAX backend."""
    devices = cpu_mesh(8).devices.reshape(2, 2, 2)
    return Mesh(devices, ("data", "stage", "model"), axis_types=(AxisType.Auto,) * 3)


def spread_step(mesh: Mesh, algorithm: str, *, check_vma: bool = True) -> Any:
    """jitted (params, images, labels) → (params, loss), parameters as SPECS says."""

    def step(params: Params, images: jax.Array, labels: jax.Array) -> tuple[Params, jax.Array]:
        value, grads = spread_value_and_grad(params, images, labels, microbatches=MICROBATCHES, algorithm=algorithm)
        return descended(params, grads), value

    ins, outs = (SPECS, P("data"), P("data")), (SPECS, P())
    return jax.jit(jax.shard_map(step, mesh=mesh, in_specs=ins, out_specs=outs, check_vma=check_vma))


@jax.jit
def whole_step(params: Params, images: jax.Array, labels: jax.Array) -> tuple[Params, jax.Array]:
    """The same on one device."""
    value, grads = jax.value_and_grad(lambda p: loss(p, on_one_device(p, images), labels))(params)
    return descended(params, grads), value


def descended(params: Params, grads: Params) -> Params:
    """One step of gradient descent."""
    return jax.tree.map(lambda p, g: p - RATE * g, params, grads)


def difference(one: Params, other: Params) -> float:
    """The largest of any parameter."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)


def main(algorithm: str = "ring", epochs: int = EPOCHS) -> int:
    """Trains both, and prints how they compare; 1 if they do not agree."""
    mesh = hybrid_mesh()
    digits, test = data.load()
    ours = theirs = initial(Shape(), seed=0)
    step = spread_step(mesh, algorithm)
    print(f"{mesh.shape['data']} data × {mesh.shape['stage']} stages × {mesh.shape['model']} model ranks, {algorithm}")
    print("epoch   loss of the last batch   on one device")
    for epoch in range(epochs):
        values = (0.0, 0.0)
        for images, labels in digits.batches(BATCH, 1, epoch):
            (ours, mine), (theirs, alone) = step(ours, images, labels), whole_step(theirs, images, labels)
            values = float(mine), float(alone)
        print(f"{epoch + 1:5}{values[0]:25.6f}{values[1]:16.6f}")
    apart, known = difference(ours, theirs), accuracy(theirs, test)
    print(
        f"accuracy on {len(test)} other digits: {100 * accuracy(ours, test):.1f} %, on one device {100 * known:.1f} %"
    )
    print(f"the largest difference of any parameter: {apart:.1e}")
    return int(apart > TOLERANCE)


def accuracy(params: Params, digits: data.Digits) -> float:
    """The share of the digits that a model on one device recognises."""
    local = jax.tree.map(np.asarray, params)
    found = np.asarray(scores(local, on_one_device(local, jax.numpy.asarray(digits.images)))).argmax(-1)
    return float((found == digits.labels).mean())


if __name__ == "__main__":
    sys.exit(main())
