"""What is lost while one machine has another's memory open: an agent, a broker, a member of the directory, the
directory, the line between the machines, a machine. Nothing of these ends a lease by itself; what does end it
is seen afterwards.
"""
import os
import sys
import time

sys.path.insert(0, os.path.dirname(__file__))
from machines import MIB, Program, await_that, check, cluster_of, end_with_faults

FREED = 4 * MIB


class Scene:
    """One shares, two has it open, and it is freed."""

    def __init__(self, cluster, name):
        self.cluster, self.name = cluster, name
        self.one, self.two = cluster.machines[:2]
        self.a, self.b = Program(self.one), Program(self.two)
        self.pointer = self.a.do(f'alloc({FREED}, 0x66)')
        self.handle = self.a.do(f'share({self.pointer})')
        self.there = self.b.opens(self.handle, f'{self.name}: it opens')
        self.a.do(f'free({self.pointer})')

    def still(self, when):
        others = [self.a.do(f'alloc({FREED}, 0x77)') for _ in range(2)]
        check(self.b.do(f'read({self.there})') == '66666666', f'{self.name}: it reads on {when}')
        self.still_held(when)
        for other in others:
            self.a.do(f'free({other})')

    def still_held(self, when):
        check(self.one.limbo() == FREED, f'{self.name}: it is held {when}: {self.one.limbo()}')

    def is_back(self, when):
        await_that(lambda: self.one.limbo() == 0, f'{self.name}: it comes back {when}; '
                   f'{self.one.gpushim("cluster")} {self.one.said()[-1500:]} {self.two.said()[-1500:]}')

    def close(self):
        self.b.do(f'close({self.there})')

    def share_again(self, when):
        before = self.one.limbo()
        pointer = self.a.do(f'alloc({MIB}, 0x12)')
        handle = self.a.do(f'share({pointer})')
        there = self.b.opens(handle,
                             f'{self.name}: more is shared {when}; {self.one.said()[-900:]} {self.two.said()[-900:]}')
        self.b.do(f'close({there})')
        self.a.do(f'free({pointer})')
        await_that(lambda: self.one.limbo() == before, f'{self.name}: what was shared {when} and closed comes back; '
                   f'{self.one.limbo()} {self.one.said()[-1500:]} {self.two.said()[-1500:]}')

    def end(self):
        self.a.end()
        self.b.end()


def agent_of_importer(cluster):
    scene = Scene(cluster, 'the importer\'s agent is killed')
    lost = scene.one.said().count('what it has open stays')
    scene.two.kill('agent')
    scene.one.await_word('what it has open stays', lost + 1)
    scene.still('without the agent')
    scene.close()
    check(scene.one.limbo() == FREED, f'{scene.name}: what was closed meanwhile is not known to be')
    scene.two.start_agent()
    scene.is_back('when another agent has said that it is over')
    scene.share_again('with the other agent')
    scene.end()


def agent_keeps(cluster):
    scene = Scene(cluster, 'agents are started anew')
    here = scene.one.said().count('is here')
    scene.two.kill('agent')
    scene.two.start_agent()
    scene.one.await_word('is here', here + 1)
    scene.still('after the importer\'s has come back')
    scene.one.kill('agent')
    scene.one.start_agent()
    scene.one.await_word('is here', here + 2)
    scene.still('after the exporter\'s has come back')
    scene.close()
    scene.is_back('when it is closed')
    scene.end()


def broker_and_agent_of_importer(cluster):
    scene = Scene(cluster, 'the importer\'s broker and agent are killed')
    here = scene.one.said().count('is here')
    scene.two.kill('agent')
    scene.two.kill('broker')
    scene.two.start_broker()
    scene.two.start_agent()
    scene.one.await_word('is here', here + 1)
    scene.still('with others in their places')
    scene.b.end()
    scene.is_back('when the process has ended')
    scene.a.end()


def broker_then_agent_of_importer(cluster):
    scene = Scene(cluster, 'the importer\'s agent is killed after its broker')
    here = scene.one.said().count('is here')
    scene.two.another_broker()
    scene.still('with another broker')
    scene.share_again('with another broker')
    for i in range(2):  # the broker is the same by now, and never had it
        scene.two.kill('agent')
        scene.two.start_agent()
        scene.one.await_word('is here', here + 1 + i)
        scene.still('with another broker, and then another agent')
    scene.share_again('with others in their places')
    scene.b.end()
    scene.is_back('when the process has ended')
    scene.a.end()


def all_of_importer(cluster):
    """What says who holds it is lost as well: nobody knows, so it stays."""
    scene = Scene(cluster, 'the importer\'s broker, agent and file of leases are lost')
    joined = scene.two.said().count('joined the broker')
    scene.two.kill('agent')
    scene.two.kill('broker')
    scene.two.remove('agent.leases')
    scene.two.start_broker().start_agent()
    scene.two.await_word('joined the broker', joined + 1)
    scene.still('with others in their places, which do not know of it')
    scene.share_again('with others in their places')
    scene.one.await_word('were in another file')
    scene.still('when their agents have met')
    scene.b.end()
    scene.still_held('as nobody knows that it was this process')
    told = scene.one.gpushim('cluster', 'forget', 'm2')
    check(told[0] == 0, f'{scene.name}: that is taken: {told}')
    scene.is_back('when an operator says so')
    scene.a.end()


def broker_of_exporter(cluster):
    scene = Scene(cluster, 'the exporter\'s broker is killed')
    scene.one.another_broker()
    scene.still('with another broker')
    scene.share_again('with another broker')
    scene.close()
    scene.is_back('when it is closed')
    scene.end()


def file_of_exporter(cluster):
    """The agent's file is lost where the memory is: as nobody knows whose it is, it stays."""
    scene = Scene(cluster, 'the exporter\'s agent and file of leases are lost')
    joined = scene.one.said().count('joined the broker')
    scene.one.kill('agent')
    scene.one.remove('agent.leases')
    scene.one.start_agent()
    scene.one.await_word('joined the broker', joined + 1)
    scene.share_again('with another agent')
    scene.still('with another agent')
    scene.close()
    scene.still_held('as nobody knows that it was this lease')
    check('machine unknown' in scene.one.gpushim('cluster')[1], f'{scene.name}: people are told')
    told = scene.one.gpushim('cluster', 'forget', 'unknown')
    check(told[0] == 0, f'{scene.name}: that is taken: {told}')
    scene.is_back('when an operator says so')
    scene.end()


def new_boot(cluster):
    scene = Scene(cluster, 'the importer\'s machine is started anew')
    live = scene.a.do(f'alloc({FREED}, 0x67)')
    handle = scene.a.do(f'share({live})')
    scene.b.opens(handle, f'{scene.name}: it opens what is not freed')
    scene.two.kill('agent')
    scene.two.kill('broker')
    scene.b.end()
    check(scene.one.limbo() == FREED, f'{scene.name}: until it is back nobody knows')
    scene.two.remove('agent.leases')
    scene.two.boot = f'{int(scene.two.boot, 16) + 0x100:032x}'
    scene.two.start_agent()  # without a broker it cannot say what it has, which would end it too
    scene.is_back('when the directory has its new boot')
    scene.a.do(f'free({live})')
    scene.is_back('as what is freed only now')
    scene.two.start_broker()
    scene.a.end()


def forgotten(cluster):
    scene = Scene(cluster, 'a machine is forgotten')
    scene.two.kill('agent')
    await_that(lambda: '"lost"' in scene.one.gpushim('cluster', '--json')[1], f'{scene.name}: it is called lost: '
               f'{scene.one.gpushim("cluster", "--json")}')
    told = scene.one.gpushim('cluster', 'forget', 'm2')
    check(told[0] == 0, f'{scene.name}: that is taken: {told}')
    scene.is_back('when an operator says so')
    scene.b.end()
    joined = scene.two.said().count('joined the broker')
    scene.two.start_agent()
    scene.two.await_word('joined the broker', joined + 1)
    scene.a.end()


def member_of_directory(cluster):
    if not cluster.members:
        return
    scene = Scene(cluster, 'a member of the directory is killed')
    cluster.members[0].kill()
    cluster.members[0].wait()
    time.sleep(2 * cluster.lease_s)  # the time of leases of the directory passes; nothing is awaited
    scene.still('without a member')
    scene.share_again('without a member')
    cluster.members[0] = cluster.start_member(0)
    scene.close()
    scene.is_back('when it is closed')
    scene.end()


def all_of_directory(cluster):
    if not cluster.members:
        return
    scene = Scene(cluster, 'all of the directory is killed')
    answers = [machine.said().count('the directory answers') for machine in (scene.one, scene.two)]
    silent = [machine.said().count('the directory is well') for machine in (scene.one, scene.two)]
    for member in cluster.members:
        member.kill()
        member.wait()
    for machine, count in zip((scene.one, scene.two), silent):
        machine.await_word('the directory is well', count + 1)
    scene.still('without the directory')
    pointer = scene.a.do(f'alloc({MIB}, 0x12)')
    handle = scene.a.do(f'share({pointer})')
    check(isinstance(scene.b.do(f'open_({handle!r})'), str), f'{scene.name}: nothing new is opened')
    scene.close()
    scene.is_back('when it is closed, without the directory')
    for i in range(len(cluster.members)):
        cluster.members[i] = cluster.start_member(i)
    for machine, count in zip((scene.one, scene.two), answers):
        machine.await_word('the directory answers', count + 1)
    scene.share_again('when it is back')
    scene.end()


def line(cluster, lease_s, what):
    if not cluster.net:
        return
    scene = Scene(cluster, f'the line is cut for {what}')
    cluster.net.pull(2)
    time.sleep(lease_s)  # how long it is cut is what this is about
    scene.still('while it is cut')
    scene.close()
    check(scene.one.limbo() == FREED, f'{scene.name}: closed there, which is not heard here')
    cluster.net.pull(2, out=False)
    scene.is_back('when the line is there again')
    scene.share_again('when the line is there again')
    scene.end()


def main():
    cluster = cluster_of(2, sys.argv[6:])
    try:
        cluster.start()
        chosen = [word[5:] for word in sys.argv[6:] if word.startswith('only:')]
        for test in (agent_of_importer, agent_keeps, broker_and_agent_of_importer, broker_then_agent_of_importer,
                     all_of_importer, broker_of_exporter, file_of_exporter, forgotten, member_of_directory,
                     all_of_directory):
            if not chosen or test.__name__ in chosen:
                test(cluster)
        if not chosen or 'line' in chosen:
            line(cluster, 1, 'less than a lease of the directory')
            line(cluster, 3 * cluster.lease_s, 'longer than one')
        if not cluster.net and (not chosen or 'new_boot' in chosen):
            new_boot(cluster)
        end_with_faults()
    finally:
        cluster.end()


main()
