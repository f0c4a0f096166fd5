"""An environment written for verifiers, of which the trainer knows nothing: a scripted user asks for letters."""

import verifiers.v1 as vf


class LettersConfig(vf.TasksetConfig):
    letters: str = "ab"


class LettersData(vf.TaskData):
    letters: str


class LettersTask(vf.Task[LettersData, vf.State, vf.TaskConfig]):
    @vf.reward(weight=1.0)
    async def share(self, trace: vf.Trace) -> float:
        """The share of the replies that hold the letter asked for."""
        replies = [message.content or "" for message in trace.assistant_messages]
        return sum(letter in reply for letter, reply in zip(self.data.letters, replies)) / len(self.data.letters)  # noqa: B905


class LettersEnv(vf.SingleAgentEnv):
    async def run(self, task, agents):
        async with agents.agent.interaction(task) as interaction:
            for letter in task.data.letters:
                if (await interaction.turn(f"{letter}?")).terminated:
                    break


class LettersTaskset(vf.Taskset[LettersTask, LettersConfig]):
    def load(self):
        letters = self.config.letters
        return [LettersTask(LettersData(idx=i, prompt=None, letters=letters), self.config.task) for i in range(8)]


__all__ = ["LettersEnv", "LettersTaskset"]
