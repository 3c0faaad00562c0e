"""JAX with Orbax's CheckpointManager, which finds what was restored by itself."""

import time

import jax
import jax.numpy as jnp
import numpy
import orbax.checkpoint as ocp
from loop import DIRECTORY, FEATURES, PAUSE, data, digest, order, say


def loss(parameters, x, y, key):
    hidden = x @ parameters["a"]
    keep = jax.random.bernoulli(key, 0.8, hidden.shape)
    return jnp.mean((jnp.where(keep, hidden, 0) @ parameters["b"] - y) ** 2)


@jax.jit
def update(state, x, y):
    key, used = jax.random.split(state["key"])
    slope = jax.grad(loss)(state["parameters"], x, y, used)
    speed = jax.tree.map(lambda v, g: 0.9 * v + g, state["speed"], slope)
    parameters = jax.tree.map(lambda p, v: p - 0.01 * v, state["parameters"], speed)
    return {"parameters": parameters, "speed": speed, "key": key}


inputs, targets = (numpy.asarray(each, numpy.float32) for each in data())
first, second = jax.random.split(jax.random.PRNGKey(7))
parameters = {"a": jax.random.normal(first, (FEATURES, 16)), "b": jax.random.normal(second, (16, 1))}
state = {"parameters": parameters, "speed": jax.tree.map(jnp.zeros_like, parameters), "key": first}
options = ocp.CheckpointManagerOptions(save_interval_steps=5, max_to_keep=2)
with ocp.CheckpointManager(DIRECTORY, options=options) as manager:
    step = manager.latest_step() or 0
    if step:
        state = manager.restore(step, args=ocp.args.StandardRestore(state))
    say(start=step)
    while step < 60:
        ids = order(step // 16)[step % 16 * 4 :][:4]
        say(ids=ids)
        state = update(state, inputs[ids], targets[ids])
        step += 1
        time.sleep(PAUSE)
        manager.save(step, args=ocp.args.StandardSave(state))
    manager.wait_until_finished()
say(digest=digest(numpy.asarray(leaf) for leaf in jax.tree.leaves(state["parameters"])), step=step)
