# SPDX-License-Identifier: Apache-2.0
"""Defines the custom gradients that the estimators use.

No other module uses `tf.custom_gradient`. The functions take and return Tensors
and capture no variable.
"""

import contextlib

import tensorflow as tf

from tfp_rb.internal import loops

__all__ = [
  'call_one_by_one',
  'likelihood_ratio',
  'linear_scan',
  'objective_of',
  'scale_gradient',
  'softplus',
  'value_with_gradient_of',
]


@tf.custom_gradient
def likelihood_ratio(log_prob):
  """Returns ones that differentiate, at any order, as `q(z) / stop(q(z))`.

  The gradient of the ratio is the ratio times the gradient of `log q(z)`.
  Because the gradient refers to the ratio again, higher derivatives are correct
  as well. Unlike `exp(x - stop(x))`, the ratio is 1, not NaN, if `log q(z)` is
  `-inf`. The product of the ratio and `f(z)` has the gradient of Equation (3)
  of the paper.

  Args:
    log_prob: Floating-point `Tensor`, `log q(z)`.

  Returns:
    ratio: `Tensor` of ones with the shape and dtype of `log_prob`.
  """
  return tf.ones_like(log_prob), lambda dy: dy * likelihood_ratio(log_prob)


@tf.custom_gradient
def value_with_gradient_of(value, surrogate, auxiliary):
  """Returns `value` with the gradient of `surrogate`, and trains `auxiliary`.

  All three have the same shape. `auxiliary` is an objective for variables of
  the estimator itself. It must be minimised even if the caller maximises the
  value, so its cotangent is `|dy|`: the gradients of `loss`, of `-loss` and of
  `7 * loss` all improve a baseline.

  Args:
    value: `Tensor`. It is returned unchanged, even if it is infinite.
    surrogate: `Tensor` whose gradient replaces that of `value`.
    auxiliary: `Tensor`, an objective for variables of the estimator itself.

  Returns:
    value: `Tensor`, as given.
  """
  # `value + surrogate - stop(surrogate)` would be NaN for infinite values.
  return tf.identity(value), lambda dy: (tf.zeros_like(dy), dy, tf.abs(dy))


def objective_of(objective, tape, variables):
  """Returns `objective` with a gradient with respect to `variables` only.

  Use this function if the objective also depends on the user's model, but must
  not train it.

  Args:
    objective: `Tensor`.
    tape: Persistent `tf.GradientTape` that recorded `objective`.
    variables: List of `tf.Variable`s.

  Returns:
    objective: `Tensor`, as given.
  """

  @tf.custom_gradient
  def of_variables(*values):
    del values  # These arguments connect the variables to the caller's tape.

    def pullback(*cotangents):
      return tape.gradient(
        objective,
        variables,
        output_gradients=cotangents[0],
        unconnected_gradients='zero',
      )

    return tf.stop_gradient(objective), pullback

  return of_variables(*[tf.convert_to_tensor(v) for v in variables])


def call_one_by_one(f, x):
  """Returns the stacked results `f(x[i])`, and keeps no intermediate results.

  The forward and the backward pass are loops that hold the intermediate results
  of one call at a time, in eager mode, in graphs and under XLA. The backward
  pass calls `f` again. Unlike `tf.recompute_grad`, this function differentiates
  with respect to Tensors that `f` captures, not only to `x` and variables.
  Higher derivatives are supported, but a second derivative keeps all
  intermediate results. `f` is traced once to find the Tensors that it captures.

  Args:
    f: Callable that maps a `Tensor` to a floating-point `Tensor`.
    x: `Tensor` with a static first dimension.

  Returns:
    values: `Tensor` with the results along the first dimension.
  """
  traced = tf.function(f, autograph=False).get_concrete_function(
    tf.TensorSpec(x.shape[1:], x.dtype)
  )
  result = traced.structured_outputs
  # In eager mode, `init_scope` pauses the caller's tape, which would keep all
  # intermediate results. A graph keeps none unless the loop is differentiated.
  eagerly = tf.executing_eagerly()
  with tf.init_scope() if eagerly else contextlib.nullcontext():
    values = tf.map_fn(
      f,
      x,
      fn_output_signature=tf.TensorSpec(result.shape, result.dtype),
      parallel_iterations=1,
    )

  # A custom gradient differentiates with respect to its arguments only, so the
  # captured Tensors are passed as arguments.
  has_gradient = lambda t: t.dtype.is_floating or t.dtype.is_complex
  inputs = [x] if has_gradient(x) else []
  captured = [t for t in traced.captured_inputs if has_gradient(t)]
  captured += [v for v in traced.variables if has_gradient(v)]

  def pullback(cotangents):
    return _pull_back_one_by_one(f, x, inputs, captured, cotangents)

  @tf.custom_gradient
  def of_sources(*sources):
    del sources  # These arguments connect `x` and the captures to the tape.
    return tf.stop_gradient(values), pullback

  if not inputs and not captured:
    return values
  return of_sources(*inputs, *[tf.convert_to_tensor(t) for t in captured])


def _pull_back_one_by_one(f, x, inputs, captured, cotangents):
  """Computes the gradients of `call_one_by_one`; calls `f` again in a loop.

  Args:
    f: Callable.
    x: `Tensor`, the arguments of `f` along the first dimension.
    inputs: `[x]` if it is differentiable, else `[]`.
    captured: List of `Tensor`s and variables that `f` captures.
    cotangents: `Tensor`, the cotangents of the results.

  Returns:
    gradients: List of `Tensor`s, w.r.t. `inputs` and `captured`.
  """
  num_calls = x.shape[0]

  def step(i, slopes, totals):
    # For `x[i]`, whose position is unknown at compile time, XLA in older
    # versions of TensorFlow would pad `x` to twice its size.
    own = tf.gather(x, i)
    sources = [own] * len(inputs) + captured
    with tf.GradientTape(watch_accessed_variables=False) as tape:
      tape.watch(sources)
      value = f(own)
    gradients = tape.gradient(
      value,
      sources,
      output_gradients=tf.gather(cotangents, i),
      unconnected_gradients='zero',
    )
    # The gradient of `tf.gather` is a sparse `IndexedSlices`.
    gradients = [tf.convert_to_tensor(g) for g in gradients]
    slopes = [s.write(i, g) for s, g in zip(slopes, gradients)]
    of_captured = gradients[len(inputs) :]
    return i + 1, slopes, [t + g for t, g in zip(totals, of_captured)]

  _, slopes, totals = tf.while_loop(
    lambda i, slopes, totals: i < num_calls,
    step,
    (
      tf.constant(0),
      [tf.TensorArray(t.dtype, num_calls) for t in inputs],
      [tf.zeros_like(t) for t in captured],
    ),
    parallel_iterations=1,
    maximum_iterations=num_calls,
  )
  # Restore the static shape of the elements, which the loop loses.
  slopes = [tf.ensure_shape(s.stack(), x.shape) for s in slopes]
  return slopes + totals


def linear_scan(factors, inputs, backwards=False):
  """Solves a linear recursion; the gradient solves the reverse recursion.

  ```none
  forwards:    x_t = x_{t-1} A_t + b_t,    x_{-1} = 0
  backwards:   x_t = A_{t+1} x_{t+1} + b_t,    x_T = 0
  ```

  The gradient of each recursion is the other one, so derivatives of any order
  are exact, and none of them needs a stack of intermediate results. (XLA cannot
  differentiate `tf.scan` if it was traced outside of XLA.)

  Args:
    factors: `Tensor` of shape `[T, rows, K, K]`, `A`.
    inputs: `Tensor` of shape `[T, rows, K]`, `b`.
    backwards: Python `bool`.

  Returns:
    x: `Tensor` of shape `[T, rows, K]`.
  """

  @tf.custom_gradient
  def solve(factors, inputs):
    def pullback(slope):
      # Solve again: a higher derivative must not differentiate the loop.
      own = linear_scan(factors, inputs, backwards)
      other = linear_scan(factors, slope, not backwards)
      forward, backward = (other, own) if backwards else (own, other)
      before = tf.concat([tf.zeros_like(forward[:1]), forward[:-1]], axis=0)
      return before[..., tf.newaxis] * backward[..., tf.newaxis, :], other

    run = _scan_backwards if backwards else _scan_forwards
    return run(tf.stop_gradient(factors), tf.stop_gradient(inputs)), pullback

  return solve(factors, inputs)


@loops.as_graph
def _scan_forwards(factors, inputs):
  def step(x, elements):
    factor, b = elements
    return tf.einsum('ri,rij->rj', x, factor) + b

  return tf.scan(step, (factors, inputs), tf.zeros_like(inputs[0]))


@loops.as_graph
def _scan_backwards(factors, inputs):
  def step(x, elements):
    factor, b = elements
    return tf.einsum('rij,rj->ri', factor, x) + b

  # The last step has no factor after it.
  after = tf.concat([factors[1:], tf.zeros_like(factors[:1])], axis=0)
  return tf.scan(step, (after, inputs), tf.zeros_like(inputs[0]), reverse=True)


def scale_gradient(x, factor):
  """Returns `x` with its gradient multiplied by `factor`."""
  if not x.dtype.is_floating:  # Integers have no gradient.
    return x

  @tf.custom_gradient
  def scaled(x):
    return tf.identity(x), lambda dy: factor * dy

  return scaled(x)


@tf.custom_gradient
def softplus(x):
  """Returns `log(1 + exp(x))`, in half the time of `tf.nn.softplus` under XLA.

  `tf.nn.softplus` calls `log1p`, for which XLA evaluates two branches on a CPU.
  In float32, the absolute error of the result is at most 6e-8, which is enough
  for a sum over pixels. A log-probability would need relative accuracy.

  Args:
    x: Floating-point `Tensor`.

  Returns:
    y: `Tensor` like `x`. Its gradient is `sigmoid(x)`.
  """
  tail = tf.exp(-tf.abs(x))  # `1 + tail` would round to 1 in half precision.
  log = tf.math.log(1.0 + tail) if x.dtype.size >= 4 else tf.math.log1p(tail)
  return tf.maximum(x, 0.0) + log, lambda dy: dy * tf.sigmoid(x)
