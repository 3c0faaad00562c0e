"""`@task.resumable_train`: a function that returns the training's command, or its arguments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import (
    DecoratedOperator,
    context_merge,
    determine_kwargs,
    task_decorator_factory,
)

from airflow_resume_provider.errors import InvalidInput
from airflow_resume_provider.operators.train import ResumableTrainOperator

if TYPE_CHECKING:
    from airflow.sdk.bases.decorator import TaskDecorator

UNTIL_EXECUTED = ("(returned by the function)",)


class _ResumableTrainDecoratedOperator(DecoratedOperator, ResumableTrainOperator):
    """
    Trains with the command that a Python function returns.

    The function runs in the first leg of each try; later attempts of the same
    try get the same command.

    :param python_callable: returns a list (the command, or further arguments when ``command``
        is given) or a dictionary (``{"lr": 0.1}`` becomes ``--lr 0.1``, needs ``command``).
    """

    template_fields: Sequence[str] = (
        *DecoratedOperator.template_fields,
        *ResumableTrainOperator.template_fields,
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **DecoratedOperator.template_fields_renderers,
        **ResumableTrainOperator.template_fields_renderers,
    }
    custom_operator_name = "@task.resumable_train"
    overwrite_rtif_after_execution = True

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        command: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            python_callable=python_callable,
            op_args=op_args,
            op_kwargs=op_kwargs,
            command=command or UNTIL_EXECUTED,
            **kwargs,
        )

    def execute(self, context: Any) -> Any:
        """Call the function, then train."""
        context_merge(context, self.op_kwargs)
        arguments = determine_kwargs(self.python_callable, self.op_args, context)
        self.command = command(self.command, self.python_callable(*self.op_args, **arguments))
        self.render_template_fields(context)
        self.carried = {"command": list(self.command)}
        return super().execute(context)

    def execute_complete(self, context: Any, event: dict[str, Any]) -> Any:
        """Go on with the command of the try's first leg."""
        self.command = list(event["carry"]["command"])
        self.carried = {"command": self.command}
        return super().execute_complete(context, event)


def command(given: Sequence[str], returned: Any) -> list[str]:
    """Return the whole command: what was given, if anything, and what the function returned."""
    base = [] if tuple(given) == UNTIL_EXECUTED else list(given)
    if isinstance(returned, Mapping) and base:
        return [*base, *(word for key, value in returned.items() for word in _option(key, value))]
    if isinstance(returned, Sequence) and not isinstance(returned, str) and (base or returned):
        return [*base, *(str(word) for word in returned)]
    raise InvalidInput(
        f"The function returned {returned!r}.",
        can="Return a list of arguments, or a dictionary of options when `command` is given.",
        parameter="command",
        value=returned,
    )


def _option(key: Any, value: Any) -> list[str]:
    name = f"--{str(key).replace('_', '-')}"
    if value is None or value is False:
        return []
    return [name] if value is True else [name, str(value)]


def resumable_train_task(
    python_callable: Callable[..., Any] | None = None, multiple_outputs: bool | None = None, **kwargs: Any
) -> TaskDecorator:
    """
    Wrap a function into a ResumableTrainOperator.

    :param python_callable: the function.
    :param multiple_outputs: publish each key of the summary as an XCom of its own.
    """
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=multiple_outputs,
        decorated_operator_class=_ResumableTrainDecoratedOperator,
        **kwargs,
    )
