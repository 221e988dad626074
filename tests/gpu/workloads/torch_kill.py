"""Processes that share CUDA tensors through torch.multiprocessing and end badly.

Consumers are killed while they hold tensors, in the middle of their GPU work; producers leave
early, in order or killed, before and after their tensors were opened. Who stays must see its own
bytes and go on. What only a library that keeps shared memory alive makes possible is a "GAIN".
"""

import os
import queue
import signal
import sys
import time

import torch
import torch.multiprocessing as mp

from results import all_run, result

SECONDS = 60
WORDS = 1 << 20
BROKER = os.environ.get("GPUSHIM_SHARE_STRATEGY") == "broker"


def filled(value, words=WORDS):
    tensor = torch.full((words,), value, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    return tensor


def is_all(tensor, value):
    return bool((tensor == value).all().item())


# ---- Consumers ----


def consumer(offers, answers):
    """Holds everything it is offered; says what it sees whenever it is asked."""
    held = []
    while True:
        order, payload = offers.get(timeout=SECONDS)
        if order == "take":
            held.append(payload)
            answers.put(is_all(payload[0], payload[1]))
        elif order == "check":
            answers.put(all(is_all(tensor, value) for tensor, value in held))
        elif order == "work":
            # Reads and writes its own bytes for about as long as the GPU is given to it.
            tensor, value = held[-1]
            for _ in range(20000):
                tensor.fill_(value)
            answers.put(True)
            torch.cuda.synchronize()
        elif order == "leave":
            held.clear()
            answers.put(True)
            return
        del payload


class Consumer:
    def __init__(self):
        self.offers, self.answers = mp.Queue(), mp.Queue()
        self.process = mp.Process(target=consumer, args=(self.offers, self.answers), daemon=True)
        self.process.start()

    def ask(self, order, payload=None):
        self.offers.put((order, payload))
        return self.answers.get(timeout=SECONDS)

    def kill(self):
        self.process.kill()
        self.process.join(SECONDS)
        return self.process.exitcode


def killed_consumers():
    """One of two consumers is killed, with work under way; then a new one takes its place."""
    stays, dies = Consumer(), Consumer()
    tensor = filled(41)
    result("both_see_it", stays.ask("take", (tensor, 41)) and dies.ask("take", (tensor, 41)))
    result("working", dies.ask("work"))
    result("killed", dies.kill())
    result("the_other_still_sees_it", stays.ask("check"))
    result("the_producer_too", is_all(tensor, 41))
    result("a_new_consumer", (new := Consumer()).ask("take", (tensor, 41)))
    for i in range(5):
        more = filled(100 + i)
        result(f"more_{i}", stays.ask("take", (more, 100 + i)) and new.ask("take", (more, 100 + i)))
        del more
    result("all_of_it", stays.ask("check") and new.ask("check"))
    result("in_order", stays.ask("leave") and new.ask("leave"))


def killed_again_and_again():
    """The producer's memory does not run away: what it shares with consumers that are killed."""
    kept, outcomes = filled(7), []
    for i in range(4):
        victim = Consumer()
        large = filled(1000 + i, 64 << 20)
        outcomes.append(victim.ask("take", (large, 1000 + i)))
        outcomes.append(victim.ask("take", (kept, 7)))
        victim.kill()
        outcomes.append(is_all(large, 1000 + i))
        del large
    result("killed_again_and_again", all(outcomes))
    result("what_was_kept", is_all(kept, 7))


# ---- Producers ----


def producer(offers, told, how):
    """Offers tensors, waits to be told, and leaves in one of the ways."""
    tensors = [filled(value) for value in (201, 202, 203)]
    for value, tensor in zip((201, 202, 203), tensors):
        offers.put((tensor, value))
    told.get(timeout=SECONDS)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "os_exit":
        os._exit(0)


def leaving_producer(how):
    """The first tensor is opened while the producer lives, the others when it is gone."""
    offers, told = mp.Queue(), mp.Queue()
    process = mp.Process(target=producer, args=(offers, told, how), daemon=True)
    process.start()
    tensor, value = offers.get(timeout=SECONDS)
    result(f"{how}_opened_before", is_all(tensor, value))
    told.put(True)
    process.join(SECONDS)
    result(f"{how}_exit", process.exitcode)
    others = [filled(9) for _ in range(16)]
    torch.cuda.synchronize()
    result(f"{how}_still_there", is_all(tensor, value))
    del others
    late = "refused"
    try:
        tensor, value = offers.get(timeout=5)
        late = "ok" if is_all(tensor, value) else "WRONG"
    except queue.Empty:
        late = "nothing came"
    except Exception:  # PyTorch's message depends on where it failed
        pass
    # Natively the memory is gone with its process, or what PyTorch passes beside the handle is.
    print(f"PROBE {how}_opened_afterwards {late}", flush=True)
    if BROKER and late == "ok":
        print(f"GAIN {how}_opened_afterwards ok", flush=True)
    result(f"{how}_foreign_bytes_afterwards", late == "WRONG")
    process.kill()


def main():
    mp.set_start_method("spawn")
    torch.zeros(1, device="cuda")
    checks = [killed_consumers, killed_again_and_again]
    checks += [lambda how=how: leaving_producer(how) for how in ("killed", "os_exit")]
    passed = all_run(checks)
    torch.cuda.synchronize()
    time.sleep(0.2)
    again = torch.ones(32 << 20, device="cuda")
    result("afterwards", again.sum().item() == 32 << 20)
    return not passed


if __name__ == "__main__":
    sys.exit(main())
