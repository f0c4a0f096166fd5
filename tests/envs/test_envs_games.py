"""The built-in environments and the tasks that lead into them."""

import random

import pytest

from grouprl.core.errors import InputError
from grouprl.envs.builtin import Calculator, Guess, Keys, TicTacToe
from grouprl.envs.builtin.calculator import running_totals
from grouprl.envs.builtin.key_door import critique
from grouprl.envs.builtin.tictactoe import best_cells, value, winner
from grouprl.envs.playing import demonstrated_actions, total_reward
from grouprl.tasks import CalculatorTask, Example, GuessTask, KeysTask, TicTacToeTask, load_task

TASKS = [GuessTask, KeysTask, TicTacToeTask, CalculatorTask]
LEVELS = [(task, level) for task in TASKS for level in range(1, 7)]


def began(environment, prompt="?", seed=0, **columns):
    first = environment.reset(Example("q", prompt, columns), seed)
    return environment, first


def played(environment, *actions):
    return [environment.step(action) for action in actions]


def test_guess_narrows_down_and_ends_with_the_hidden_number():
    game, first = began(Guess(4), "3-9?", low=3, high=9, hidden=7)
    assert (first.text, first.state, first.legal) == ("3-9?", "3-9", ("3", "4", "5", "6", "7", "8", "9"))
    more, less, found = played(game, "5", " 8 ", "7")
    assert [step.observation.text for step in (more, less, found)] == [">", "<", "="]
    assert [step.observation.state for step in (more, less, found)] == ["6-9", "6-7", "7-7"]
    assert [(step.reward, step.terminated, step.truncated) for step in (more, found)] == [
        (0.0, False, False),
        (1.0, True, False),
    ]
    assert game.score() == {"correct": 1.0}


def test_guess_calls_what_was_ruled_out_invalid_and_cuts_off():
    game, _ = began(Guess(3), low=3, high=9, hidden=7)
    steps = played(game, "5", "4", "x")
    assert [step.valid for step in steps] == [True, False, False]
    assert [step.observation.text for step in steps] == [">", "!", "!"]
    assert [(step.terminated, step.truncated) for step in steps] == [(False, False), (False, False), (False, True)]
    assert game.score() == {"correct": 0.0}


def test_bisection_always_finds_the_number_in_the_turns_allowed():
    for level in range(1, 7):
        task = GuessTask(level=level, noise=0)
        examples = [task.example("train", index) for index in range(100)]
        assert all(task.reward(task.demonstration(q, 0), **q.columns) == 1 for q in examples)
        assert max(len(task.demonstration(q, 0).split()) for q in examples) == task.max_turns


GRID = {"size": 3, "start": "00", "key": "02", "door": "20", "walls": ["11", "10"]}


def test_keys_rewards_only_the_door_with_the_key():
    game, first = began(Keys(12), "#10#11k02d20@00>", **GRID)
    assert (first.text, first.state, first.legal) == ("#10#11k02d20@00>", "@00", ("r",))
    steps = played(game, "d", "r", "r", "d", "d", "l", "l")
    assert [step.observation.text for step in steps] == ["!@00>", "@01>", "&02>", "&12>", "&22>", "&21>", "&20>"]
    assert [step.observation.state for step in steps] == ["@00", "@01", "&02", "&12", "&22", "&21", "&20"]
    assert [step.reward for step in steps] == [0, 0, 0, 0, 0, 0, 1]
    assert [step.valid for step in steps] == [False] + [True] * 6
    assert steps[-1].terminated
    assert game.score() == {"correct": 1.0}


def test_keys_without_the_key_the_door_is_a_cell_like_others():
    game, _ = began(Keys(9), size=3, start="00", key="22", door="01", walls=[])
    step = game.step("r")
    assert (step.reward, step.terminated, step.observation.state) == (0, False, "@01")
    assert len(game.way()) == 3 + 3


def earned(*moves, grid=GRID):
    game, _ = began(Keys(20, reward="carl"), **grid)
    return [step.reward for step in played(game, *moves)], game


def test_keys_pay_as_carl_does():
    sixth = pytest.approx(1 / 6)
    assert earned(*"rrddll")[0] == [sixth] * 6
    assert earned(*"rlrrddll")[0] == pytest.approx([1 / 6, 0, 0, 1 / 12, 1 / 6, 1 / 6, 1 / 6, 1 / 6])
    rewards, game = earned("r", "d")
    assert (rewards, game.correct) == ([sixth, -1.0], False)
    with pytest.raises(InputError, match="after the end"):
        game.step("r")
    assert earned("nonsense")[0] == [0.0]


def test_turning_back_at_a_key_in_a_dead_end_costs_nothing():
    dead_end = {"size": 3, "start": "00", "key": "02", "door": "00", "walls": ["12", "11"]}
    assert earned(*"rrll", grid=dead_end)[0] == pytest.approx([0.25] * 4)


def followed(*moves):
    game, _ = began(Keys(9, reward="expert"), **GRID)
    return played(game, *moves), game


def test_keys_pay_every_move_that_an_expert_would_make():
    steps, game = followed(*"rrddll")
    assert [step.reward for step in steps] == [pytest.approx(1 / 6)] * 6
    assert [step.valid for step in steps] == [True] * 6
    assert steps[-1].terminated
    assert game.score() == {"correct": 1.0}


def test_an_expert_makes_the_move_that_was_missed():
    steps, game = followed("r", "l", "x", "d", "l", "l")
    assert [step.observation.text for step in steps] == ["@01>", "!&02>", "!&12>", "&22>", "&21>", "&20>"]
    assert [step.valid for step in steps] == [True, False, False, True, True, True]
    assert [step.reward for step in steps] == pytest.approx([1 / 6, 0, 0, 1 / 6, 1 / 6, 1 / 6])
    assert steps[-1].terminated
    assert game.score() == {"correct": 0.0}


def test_an_expert_agrees_with_every_shortest_way():
    game, _ = began(Keys(9, reward="expert"), size=3, start="00", key="11", door="22", walls=[])
    assert [game.is_on_path(move) for move in "udlr"] == [False, True, False, True]


def test_a_critic_names_the_moves_that_lead_on():
    said = critique("r@01>u!@01>r&02>l&01>r&02>d&12>", **GRID)
    assert said == {"good": ["r@01>", "r&02>", "d&12>"], "poor": ["u!@01>", "l&01>"]}
    assert critique("", **GRID) == {"good": [], "poor": []}


def test_a_critic_never_praises_and_blames_the_same():
    task, rng = KeysTask(noise=1.0), random.Random(0)
    for index in range(40):
        example = task.example("train", index)
        game, _ = began(task.environment(), **example.columns)
        moves = [rng.choice("udlrx") for _ in range(8)]
        text = "".join(move + seen for move, seen in until_the_end(game, moves))
        said = critique(text, **example.columns)
        assert not set(said["good"]) & set(said["poor"])
        assert sum(text.count(part) for side in said.values() for part in side) == text.count(">")


def until_the_end(game, moves):
    for move in moves:
        step = game.step(move)
        yield move, step.observation.text
        if step.terminated:
            return


def test_keys_know_that_a_way_can_be_blocked():
    game, _ = began(Keys(9), size=3, start="00", key="22", door="20", walls=["01", "10"])
    assert game.way() == ""
    assert game.legal == ()


def test_every_grid_can_be_solved_in_time():
    for level in range(1, 7):
        task = KeysTask(level=level)
        for index in range(60):
            example = task.example("train", index)
            assert len(task.solution(example).split()) <= task.max_turns
            assert task.reward(task.solution(example), **example.columns) == 1


def test_tictactoe_win_draw_loss_by_hand():
    def end(board, cell, skill=1.0):
        game, _ = began(TicTacToe(6, skill=skill), board=board)
        step = game.step(cell)
        return step.reward, step.terminated, game.score()["correct"]

    assert end("xx.oo....", "2") == (1.0, True, 1.0)
    assert end("xx.oo.x..", "8") == (0.0, True, 0.0)  # the opponent completes its row
    assert end("xoxxoo.xo", "6") == (1.0, True, 1.0)
    assert end("xoxxooox.", "8") == (0.5, True, 1.0)
    assert end("o........", "1") == (0.0, False, 0.0)


def test_tictactoe_taken_cells_are_invalid_and_leave_the_board():
    game, _ = began(TicTacToe(2), board="xo.......")
    step = game.step("0")
    assert (step.valid, step.observation.text, step.observation.state) == (False, "!xo.......>", "xo.......")
    assert step.observation.legal == tuple("2345678")
    assert game.step("9").truncated


def test_perfect_play_is_a_draw_and_wins_what_is_won():
    assert value(".........", "x") == 0
    assert value("xx.oo....", "x") == 1
    assert best_cells("xx.oo....", "x") == [2]
    assert best_cells("oo..x....", "x") == [2]
    assert winner("x..x..x..") == "x"
    assert winner("xoxoxooxo") == ""


def test_a_perfect_opponent_never_loses():
    task = TicTacToeTask(skill=1.0, noise=0.5)
    for index in range(60):
        example = task.example("train", index)
        if value(example.columns["board"], "x") < 1:
            assert task.reward(task.demonstration(example, 1), **example.columns) < 1


def test_the_luck_of_the_opponent_comes_from_the_seed():
    task = TicTacToeTask(skill=0)
    example = Example("q", "o........>", {"board": "o........"})
    boards = {
        seed: began(task.environment(), seed=seed, **example.columns)[0].step("8").observation.text
        for seed in range(20)
    }
    again = began(task.environment(), seed=3, **example.columns)[0].step("8").observation.text
    assert len(set(boards.values())) > 3
    assert again == boards[3]


def test_calculator_calls_answers_and_malformed_calls():
    game, first = began(Calculator(9), "23*47+5=", terms=["23", "47", "5"], signs=["*", "+"])
    assert first.state == "-"
    steps = played(game, "c23*47;", "23*47", "c1081+5", "c1+;", "a1086")
    assert [step.observation.text for step in steps] == ["1081>", "!", "1086>", "!", ""]
    assert [step.valid for step in steps] == [True, False, True, False, True]
    assert [step.observation.state for step in steps] == ["1081", "1081", "1081,1086", "1081,1086", "1081,1086"]
    assert steps[-1].info == {"calls": 2, "malformed": 2}
    assert (steps[-1].reward, steps[-1].terminated, game.score()) == (1.0, True, {"correct": 1.0})


def test_calculator_pays_a_call_that_leads_on_once():
    game, _ = began(Calculator(9, call_reward=0.25), terms=["23", "47", "5"], signs=["*", "+"])
    steps = played(game, "c23*46;", "c23*47;", "c23*47;", "c1081+5;", "c1086+5;", "a1086")
    assert [step.reward for step in steps] == [0, 0.25, 0, 0.25, 0, 1]


@pytest.mark.parametrize("answer", ["a1087", "a-1086"])
def test_calculator_a_wrong_answer_ends_without_reward(answer):
    game, _ = began(Calculator(3), terms=["23", "47", "5"], signs=["*", "+"])
    step = game.step(answer)
    assert (step.reward, step.terminated, game.score()["correct"]) == (0.0, True, 0.0)


def test_running_totals():
    assert running_totals([23, 47, 5, 100], ["*", "+", "-"]) == [1081, 1086, 986]


def test_calculator_observations_are_bounded():
    game, _ = began(Calculator(3), terms=["2", "3"], signs=["*"])
    assert len(game.step("c999999999*999999999").observation.text) == 19
    assert not game.step("c1234567890+1").valid
    assert not game.step("a" + "9" * 19).valid


def test_a_prompt_of_another_task_is_refused_in_words():
    with pytest.raises(InputError, match="Guess was given the example 'q', which has no column 'low'"):
        began(Guess(3), board="x")


@pytest.mark.parametrize(("task", "level"), LEVELS)
def test_texts_and_actions_are_spelt_in_the_alphabet_and_fit_a_turn(task, level):
    task = task(level=level)
    for index in range(40):
        example = task.example("train", index)
        assert example.level == level
        environment, first = task.environment(), None
        first = environment.reset(example, index)
        assert first.text == example.prompt
        rng, step = random.Random(index), None
        while step is None or not (step.terminated or step.truncated):
            action = environment.demonstrate(rng)
            step = environment.step(action)
            assert len(action) < task.max_new_tokens
            assert set(action + first.text + step.observation.text) <= set(task.alphabet)
            assert not first.legal or step.observation.legal or step.terminated or step.truncated


@pytest.mark.parametrize(
    ("task", "low", "high"),
    [
        (GuessTask(), 0.55, 0.80),
        (KeysTask(), 0.55, 0.80),
        (TicTacToeTask(), 0.50, 0.68),
        (CalculatorTask(), 0.45, 0.68),
    ],
)
def test_demonstrations_are_imperfect(task, low, high):
    examples = [task.example("train", index) for index in range(300)]
    returns = [task.reward(task.demonstration(q, seed=1), **q.columns) for q in examples]
    assert low < sum(returns) / 300 < high


@pytest.mark.parametrize("task", [KeysTask(noise=0), CalculatorTask(noise=0)])
def test_without_noise_demonstrations_are_right(task):
    examples = [task.example("train", index) for index in range(100)]
    assert all(task.reward(task.demonstration(q, seed=1), **q.columns) == 1 for q in examples)


def test_total_reward_adds_the_components_of_the_score_and_closes():
    class Shaped(Guess):
        def score(self):
            return {"correct": 1.0, "short": 0.25, "tidy": -0.5}

    example = Example("q", "1-3?", {"low": 1, "high": 3, "hidden": 2})
    environment = Shaped(3)
    assert total_reward(environment, example, ["1", "2", "3"]) == pytest.approx(0.75)
    with pytest.raises(InputError, match="after close"):
        environment.step("1")


def test_nothing_is_demonstrated_by_an_environment_that_cannot():
    class Silent:
        reset = step = score = close = None

    assert demonstrated_actions(Silent, Example("q", ""), random.Random(0), 3) is None


def test_tasks_load_with_their_options():
    task = load_task({"name": "keys", "size": 4, "walls": 2, "turns": 10})
    assert (task.max_turns, task.example("train", 0).columns["size"]) == (10, 4)
    assert load_task("guess").max_turns == 4
    assert load_task({"name": "calculator", "operations": 3, "spare": 4}).max_turns == 7
    assert load_task({"name": "calculator", "call_reward": 0.5}).environment().call_reward == 0.5
    assert load_task({"name": "keys", "reward": "expert"}).environment().reward == "expert"
    with pytest.raises(InputError, match="Did you mean 'skill'"):
        load_task({"name": "tictactoe", "skil": 1})
