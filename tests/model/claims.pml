/*
 * Who may run a rank, and when its slot is given out again: nodes that register, leases, claims, workers.
 * README.md says what is modelled, what is left out, and how to read this.
 *
 * One job of one rank, two machines with one slot each. Each `d_step { guard -> effects }` is one thing that somebody
 * does at once; it may happen whenever its guard holds, and Spin tries all orders. Nothing counts time: a late message,
 * a machine that is cut off and a PostgreSQL that is away are orders in which the others act first.
 */

#ifndef ATTEMPTS
#define ATTEMPTS 2   /* placements of the job: 1 to 3 */
#endif
#ifndef INSTANCES
#define INSTANCES 4  /* two, and one more for each directory that is wiped, copied or cloned and each reboot */
#endif
#ifndef CALMS_DOWN
#define CALMS_DOWN 0 /* 1: at some moment faults stop, and everything must come to an end */
#endif

/* Rules that can be broken, one at a time: spin -DBREAK=ClaimForAnyInstance. */
#define Nothing 0
#define ClaimForAnyInstance 1
#define FenceByName 2
#define FenceWithoutInstance 3
#define SlotFreedWithLease 4
#define SlotByName 5
#define AbsentFromOlderSet 6
#define AbsentFromAnyInstance 7
#define OldSetsAreObeyed 8
#define LeaderDoesNotWait 9
#define RightBeforeSet 10
#define FolderAfterWorker 11
#define NewBootOfClone 12
#define NewBootAtRegister 13
#define CancelAtOnce 14
#define CancelQueuedAtOnce 15
#define CancelSeesNewestOnly 16
#define DeleteFreesSlot 17
#define RanksErased 18
#define NoOperator 19
#define AbsentOfNewestOnly 20
#define ClaimIsTakenOver 21
#ifndef BREAK
#define BREAK Nothing
#endif
#define broken(rule) (BREAK == rule)
#ifndef ONLY
#define ONLY 0       /* or the one promise that is looked at: -DONLY=OneProcessPerRank */
#endif

#define NOBODY 15

mtype = { UNUSED, ASSIGNED, RUNNING, LOST, GONE };                     /* of a rank's row: RankState */
mtype = { QUEUED, PLACED, CANCELLING, CANCELLED, SUCCEEDED, FAILED };  /* of the job; PLACED: STARTING or RUNNING */

/* One state directory under one boot of one machine: what identity.h calls an instance, with its agent. */
typedef Instance {
  byte uid;            /* node_uid, by the secret in the directory */
  byte machine;
  byte boot;           /* of the machine; each boot of each machine has its own number */
  byte name;           /* --node */
  bool directory;      /* it is there */
  byte folders;        /* bit A: the folder of attempt A's rank is there, with its claim */
  bool session;        /* its agent is in a session, and its lease holds by its own clock; else it is dead or cut off */
  bool late_register;  /* should it die: a Register of it may yet be on its way */
  byte newest_claim;   /* newest attempt that was claimed for it */
  byte set;            /* desired set that the agent reconciled in this session; 0: none yet */
  byte report_set;     /* heartbeat on its way to the server: after this set … */
  byte report_absent;  /* … bit A: the rank of attempt A does not run here; 0: no heartbeat that says anything new */
};
Instance node[INSTANCES];
byte born;             /* instances so far */
byte boots;            /* boots so far */
byte booted[2];        /* by machine: the boot that runs */

typedef Rank {
  mtype state;         /* in the store */
  byte claim;          /* in the store: the instance that it was claimed for when it was placed */
  byte starter;        /* instance whose agent is starting it, between its folder and its worker; NOBODY */
  byte process;        /* instance whose agent started the process that lives; NOBODY: none lives */
  bool right;          /* that process, or what is being started, may make checkpoints visible, by its own clock */
};
Rank rank[4];          /* by attempt; 0 is none */

/* A node's row in the store, and its lease. */
typedef Name {
  bool held;
  byte holder;         /* instance that has the lease, or had the last one */
};
Name name[2];

mtype job;
byte attempt;          /* newest attempt */
bool limit_over;       /* the job was cancelled while a rank was LOST: orphan_limit and margin were over */
bool calm;             /* from now on nothing fails */
bool rested;           /* calm, and nobody can do anything any more */

byte x;                /* within one step; 0 between steps */
byte y;

/* What must always hold: one that does not is named, and ends the run. */
mtype = { OneProcessPerRank, OneProcessPerSlot, SlotIsGivenOutEmpty, GoneIsProven, OnlyClaimHolderWrites,
          OnlyNewestIsVisible, CancelledIsEmpty, JobEnds, SlotIsFreeAgain };
#define promise(what, condition) \
  if \
  :: (ONLY != 0 && ONLY != what) || (condition) \
  :: else -> printf("BROKEN: %e\n", what); assert(false) \
  fi

#define any(what, i)        (what(1, i) || what(2, i) || what(3, i))
#define none(what, i)       (!any(what, i))
#define collect(what, i)    ((what(1, i) << 1) | (what(2, i) << 2) | (what(3, i) << 3))

#define usable(i)           (node[i].directory && node[i].boot == booted[node[i].machine])
#define named(i)            name[node[i].name]
#define holds_name(i)       (named(i).held && named(i).holder == i)
#define may_register(i)     (!named(i).held || named(i).holder == i || broken(ClaimIsTakenOver))
#define in_session(i)       (node[i].session && holds_name(i))  /* and the server agrees */
#define same_uid(i, j)      (node[i].uid == node[j].uid)

/* Of a row. */
#define is_alive(a)         (rank[a].state == ASSIGNED || rank[a].state == RUNNING)
#define is_lost(a, i)       (rank[a].state == LOST)
#define is_unproven(a, i)   (is_alive(a) || rank[a].state == LOST)
#define job_ended           (job == CANCELLED || job == SUCCEEDED || job == FAILED)

/* Of processes. What an agent sees: the processes of its folders, on its own machine. */
#define runs_on(a, m)       (rank[a].process != NOBODY && node[rank[a].process].machine == m)
#define is_busy_in(a, b)    ((rank[a].process != NOBODY && node[rank[a].process].boot == b) || \
                             (rank[a].starter != NOBODY && node[rank[a].starter].boot == b))
#define lives(a, i)         (rank[a].process != NOBODY || rank[a].starter != NOBODY)
#define has_right(a, i)     ((rank[a].process == i || rank[a].starter == i) && rank[a].right)
#define has_folder(a, i)    ((node[i].folders >> (a)) & 1)
#define sees(a, i)          (has_folder(a, i) && runs_on(a, node[i].machine))
#define starts(a, i)        (rank[a].starter == i)
#define idle(i)             (none(starts, i))  /* an agent is one thread: while it starts a rank it does nothing else */

/* A desired set is a number: even, it names attempt set / 2; odd, it names none, after attempt set / 2 was claimed. */
#define handed_to(a, i)     (rank[a].claim == i || (broken(ClaimForAnyInstance) && same_uid(rank[a].claim, i)))
#define wanted(i)           (job == PLACED && is_alive(attempt) && handed_to(attempt, i))
#define desired_set(i)      (wanted(i) -> 2 * attempt : 2 * node[i].newest_claim + 1)
#define rank_in(set)        (((set) % 2 == 0) -> (set) / 2 : 0)

/* What a heartbeat tells: ranks that the set does not name and that do not run. */
#define answers_for(a, i)   (rank[a].claim == i || (broken(AbsentFromAnyInstance) && same_uid(rank[a].claim, i)))
#define is_told(a, i)       (is_unproven(a, i) && answers_for(a, i) && (a == attempt || !broken(AbsentOfNewestOnly)))
#define is_absent(a, i)     (is_told(a, i) && !sees(a, i) && rank_in(node[i].set) != (a))
#define counts(set, i)      ((set) == desired_set(i) || broken(AbsentFromOlderSet))

/* The fence of events. They are of folders on the agent's disk, and of the newest attempt. */
#define passes_fence(i) \
  (has_folder(attempt, i) && rank[attempt].state != GONE && \
   (rank[attempt].claim == i || \
    (broken(FenceWithoutInstance) && node[i].session && same_uid(rank[attempt].claim, i)) || \
    (broken(FenceByName) && node[i].session && node[rank[attempt].claim].name == node[i].name)))
#define has_exited(i)       (!sees(attempt, i) && !starts(attempt, i))

/* Whether the rank of attempt a keeps the slot of instance i: the slot is that of a boot, whoever speaks for it. */
#define takes_slot(a, i) \
  (is_unproven(a, i) && node[rank[a].claim].boot == node[i].boot && \
   !(broken(SlotFreedWithLease) && rank[a].state == LOST) && \
   !(broken(SlotByName) && node[rank[a].claim].name != node[i].name))

/* Proof by a new boot: the machine that had the claim has another boot by now. */
#define gone_by_boot(a, i) \
  (rank[a].state == LOST && same_uid(rank[a].claim, i) && node[rank[a].claim].boot != node[i].boot && \
   (node[rank[a].claim].machine == node[i].machine || broken(NewBootOfClone)))

inline ProveByBoot(i) {
  for (x : 1 .. 3) {
    if
    :: gone_by_boot(x, i) ->
       rank[x].state = GONE; printf("  attempt %d is GONE: its node has another boot now\n", x)
    :: else
    fi
  };
  x = 0
}

inline Retry() {
  if
  :: attempt < ATTEMPTS -> job = QUEUED
  :: else -> job = FAILED
  fi
}

inline LeaveSession(i) {
  node[i].session = false;
  if
  :: !broken(OldSetsAreObeyed) -> node[i].set = 0
  :: else
  fi
}

inline StopAgent(i) {
  LeaveSession(i);
  for (x : 1 .. 3) { if :: starts(x, i) -> rank[x].starter = NOBODY; rank[x].right = false :: else fi };
  x = 0
}

inline EndProcess(a) {
  rank[a].process = NOBODY;
  rank[a].right = false
}

inline BeginProcess(a, i) {
  printf("agent %d tells the worker of attempt %d: it runs\n", i, a);
  promise(OneProcessPerRank, rank[a].process == NOBODY);
  promise(OneProcessPerSlot, none(runs_on, node[i].machine));
  rank[a].process = i
}

inline MakeFolder(a, i) {
  printf("agent %d makes the folder of attempt %d\n", i, a);
  node[i].folders = node[i].folders | (1 << a)
}

/* Nothing of interest happens any more. */
#define over (job_ended && none(is_unproven, 0) && none(lives, 0))

/* ------------------------------------------------------------------------------------------------ on a machine */

proctype Agent(byte i) provided (!over) {
  do
  /* Its session, and its lease by its own clock. That an answer is lost is no different from a session that breaks at
     once, and that a lease which ran out is renewed after all no different from a new session. */
  :: d_step { usable(i) && !node[i].session && idle(i) && may_register(i) ->
       named(i).held = true; named(i).holder = i;
       node[i].session = true;
       printf("agent %d registers: its lease holds\n", i);
       for (x : 1 .. 3) {
         if
         :: broken(RightBeforeSet) && rank[x].process == i -> rank[x].right = true
         :: broken(ClaimIsTakenOver) && is_alive(x) && node[rank[x].claim].name == node[i].name -> rank[x].claim = i
         :: else
         fi
       };
       x = 0;
       if :: broken(NewBootAtRegister) -> ProveByBoot(i) :: else fi }
  :: d_step { node[i].session && (!calm || !holds_name(i)) ->
       LeaveSession(i); printf("agent %d dies, is cut off, or its lease ends by its own clock\n", i) }
  :: d_step { !idle(i) && !calm ->
       StopAgent(i); printf("agent %d dies while it starts a rank\n", i) }

  :: d_step { !node[i].session && any(has_right, i) ->
       printf("what agent %d started may make nothing visible any more\n", i);
       for (x : 1 .. 3) { if :: has_right(x, i) -> rank[x].right = false :: else fi };
       x = 0 }

  /* Its ranks. */
  :: d_step { node[i].session && idle(i) && node[i].set != desired_set(i) && (wanted(i) || any(is_told, i)) ->
       node[i].set = desired_set(i);
       printf("agent %d reconciles the set that names attempt %d\n", i, rank_in(node[i].set));
       if :: rank[rank_in(node[i].set)].process == i -> rank[rank_in(node[i].set)].right = true :: else fi }
  :: d_step { node[i].session && idle(i) && none(sees, i) &&
              rank_in(node[i].set) != 0 && !has_folder(rank_in(node[i].set), i) ->
       y = rank_in(node[i].set);
       rank[y].starter = i; rank[y].right = true;
       if :: broken(FolderAfterWorker) -> BeginProcess(y, i) :: else -> MakeFolder(y, i) fi;
       y = 0 }
  :: d_step { !idle(i) ->
       y = (starts(1, i) -> 1 : (starts(2, i) -> 2 : 3));
       rank[y].starter = NOBODY;
       if :: broken(FolderAfterWorker) -> MakeFolder(y, i) :: else -> BeginProcess(y, i) fi;
       y = 0 }
  :: d_step { node[i].session && idle(i) && (node[i].set != 0 || broken(AbsentFromOlderSet)) && any(is_absent, i) &&
              (collect(is_absent, i) != node[i].report_absent || node[i].set != node[i].report_set) ->
       node[i].report_absent = collect(is_absent, i); node[i].report_set = node[i].set;
       printf("agent %d tells in a heartbeat what runs\n", i) }
  od
}

/* Killed, finished, failed, ended by its lease file, by its agent, or by itself because its agent is dead. */
proctype Worker(byte a) provided (!over) {
  do
  :: d_step { rank[a].process != NOBODY -> EndProcess(a); printf("the process of attempt %d ends\n", a) }
  od
}

/* -------------------------------------------------------------------------------------------------- the servers */

/* What sessions of the agent of instance i write, on whichever replica. */
proctype Session(byte i) provided (!over) {
  do
  /* While no rank is LOST, this is no different from an agent that dies right after it registered. */
  :: d_step { i < born && !usable(i) && node[i].late_register && may_register(i) && any(is_lost, 0) ->
       node[i].late_register = false;
       named(i).held = true; named(i).holder = i;
       printf("server: a late Register of instance %d, which is no more, is handled\n", i);
       if :: broken(NewBootAtRegister) -> ProveByBoot(i) :: else fi }
  /* With the first heartbeat of the session that renews its lease, in the same transaction. */
  :: d_step { in_session(i) && any(gone_by_boot, i) && !broken(NewBootAtRegister) ->
       printf("server: instance %d is another boot\n", i); ProveByBoot(i) }
  :: d_step { node[i].report_absent != 0 && counts(node[i].report_set, i) ->
       printf("server: hears of instance %d what does not run\n", i);
       for (x : 1 .. 3) {
         if
         :: ((node[i].report_absent >> x) & 1) && is_unproven(x, i) && !(wanted(i) && x == attempt) ->
            rank[x].state = GONE; printf("  attempt %d is GONE\n", x)
         :: else
         fi
       };
       node[i].report_set = 0; node[i].report_absent = 0; x = 0 }

  /* It is heard of again before anybody superseded it: it goes on. Its agent said that it runs; it may have ended since. */
  :: d_step { in_session(i) && job == QUEUED && is_lost(attempt, i) && rank[attempt].claim == i && has_folder(attempt, i) ->
       rank[attempt].state = RUNNING; job = PLACED;
       printf("server: attempt %d of instance %d is not LOST after all\n", attempt, i) }

  /* Events. */
  :: d_step { passes_fence(i) && rank[attempt].state == ASSIGNED ->
       printf("server: instance %d reports that attempt %d steps\n", i, attempt);
       promise(OnlyClaimHolderWrites, rank[attempt].claim == i);
       rank[attempt].state = RUNNING }
  :: d_step { passes_fence(i) && has_exited(i) ->
       printf("server: instance %d reports that attempt %d exited\n", i, attempt);
       promise(OnlyClaimHolderWrites, rank[attempt].claim == i);
       rank[attempt].state = GONE;
       if :: job == PLACED -> Retry() :: else fi }
  :: d_step { passes_fence(i) && has_exited(i) && (is_alive(attempt) || job == QUEUED) ->
       printf("server: instance %d reports that attempt %d finished\n", i, attempt);
       promise(OnlyClaimHolderWrites, rank[attempt].claim == i);
       rank[attempt].state = GONE;
       job = SUCCEEDED }
  od
}

inline Place(n) {
  job = PLACED; attempt++;
  rank[attempt].state = ASSIGNED; rank[attempt].claim = name[n].holder;
  node[name[n].holder].newest_claim = attempt;
  printf("leader: places attempt %d on name %d, claimed for instance %d\n", attempt, n, name[n].holder);
  promise(SlotIsGivenOutEmpty, none(is_busy_in, node[name[n].holder].boot))
}

/* The leader, as far as it looks at the node of one name. */
proctype Leader(byte n) provided (!over) {
  do
  /* LoseNodes. A lease is over only after the agent's own clock has said so: 12 s after 8 s. */
  :: d_step { name[n].held && !(calm && node[name[n].holder].session) &&
              ((!node[name[n].holder].session && none(has_right, name[n].holder)) || broken(LeaderDoesNotWait)) ->
       name[n].held = false;
       printf("leader: the lease of name %d is over\n", n);
       for (x : 1 .. 3) {
         if
         :: is_alive(x) && node[rank[x].claim].name == n ->
            rank[x].state = LOST; printf("  attempt %d is LOST\n", x);
            if :: job == PLACED -> Retry() :: else fi
         :: else
         fi
       };
       x = 0 }
  /* Placement, with the claim in the same transaction. */
  :: d_step { job == QUEUED && attempt < ATTEMPTS && name[n].held && none(takes_slot, name[n].holder) ->
       Place(n) }
  od
}

/* Users, and what follows from what they ask for. */
proctype User() provided (!over) {
  do
  :: d_step { job == PLACED && !calm ->
       job = (broken(CancelAtOnce) -> CANCELLED : CANCELLING); printf("user: cancels the job that runs\n") }
  :: d_step { job == QUEUED && !calm ->
       job = ((any(is_unproven, 0) && !broken(CancelQueuedAtOnce)) -> CANCELLING : CANCELLED);
       printf("user: cancels the job that waits\n") }
  :: d_step { job == CANCELLING &&
              (none(is_unproven, 0) || (broken(CancelSeesNewestOnly) && !is_unproven(attempt, 0))) ->
       job = CANCELLED; printf("leader: the job is CANCELLED\n") }
  :: d_step { job == CANCELLING && any(is_lost, 0) && !is_alive(attempt) ->
       job = CANCELLED; limit_over = true; printf("leader: the job is CANCELLED, since the limit is over\n") }
  :: d_step { job == CANCELLED && any(is_lost, 0) && broken(DeleteFreesSlot) ->
       printf("user: deletes the job\n");
       for (x : 1 .. 3) { if :: is_lost(x, 0) -> rank[x].state = GONE :: else fi };
       x = 0 }
  od
}

/* Says that a machine is empty, having looked. Once nothing fails he does so only where nobody else can. */
proctype Operator(byte a) provided (!over) {
  do
  :: d_step { is_lost(a, 0) && !lives(a, 0) && !broken(NoOperator) &&
              !(calm && usable(rank[a].claim) && may_register(rank[a].claim)) ->
       rank[a].state = GONE; printf("operator: the slot of attempt %d is empty\n", a) }
  od
}

/* ------------------------------------------------------------------------------------------------ what goes wrong */

inline Born(of_uid, on_machine, in_boot, of_name, with_folders) {
  node[born].uid = of_uid; node[born].machine = on_machine; node[born].boot = in_boot; node[born].name = of_name;
  node[born].folders = with_folders; node[born].directory = true; node[born].late_register = true;
  printf("  instance %d: uid %d, machine %d, boot %d, name %d\n", born, of_uid, on_machine, in_boot, of_name);
  born++
}

/* Everything on the machine ends, and it runs another boot. */
inline PowerCycle(host) {
  for (x : 1 .. 3) { if :: runs_on(x, host) -> EndProcess(x) :: else fi };
  for (y : 0 .. INSTANCES - 1) {
    if
    :: y < born && node[y].machine == host -> StopAgent(y)
    :: else
    fi
  };
  x = 0; y = 0;
  booted[host] = boots; boots++
}

/* Of nodes that nothing was claimed for, one is like another. */
#define may_be_born(i) (!calm && born < INSTANCES && usable(i) && node[i].newest_claim != 0)

proctype Fault(byte i) provided (!over) {
  do
  :: d_step { may_be_born(i) && !node[i].session && idle(i) ->
       printf("fault: the agent of instance %d is dead, and its state directory is wiped\n", i);
       node[i].directory = false;
       Born(born, node[i].machine, node[i].boot, node[i].name, 0) }
  :: d_step { may_be_born(i) ->
       printf("fault: the machine of instance %d boots again\n", i);
       PowerCycle(node[i].machine);
       Born(node[i].uid, node[i].machine, booted[node[i].machine], node[i].name, node[i].folders) }
  :: d_step { may_be_born(i) ->
       printf("fault: the other machine boots from a copy of the disk of instance %d, under its own name\n", i);
       PowerCycle(1 - node[i].machine);
       Born(node[i].uid, 1 - node[i].machine, booted[1 - node[i].machine], 1 - node[i].machine, node[i].folders) }
  :: d_step { may_be_born(i) ->
       printf("fault: the other machine boots from a copy of the disk of instance %d, under that one's name\n", i);
       PowerCycle(1 - node[i].machine);
       Born(node[i].uid, 1 - node[i].machine, booted[1 - node[i].machine], node[i].name, node[i].folders) }
  :: d_step { may_be_born(i) ->
       printf("fault: the state directory of instance %d is copied on its machine, under the same name\n", i);
       Born(node[i].uid, node[i].machine, node[i].boot, node[i].name, node[i].folders) }
  :: d_step { may_be_born(i) ->
       printf("fault: the state directory of instance %d is copied on its machine, under another name\n", i);
       Born(node[i].uid, node[i].machine, node[i].boot, 1 - node[i].name, node[i].folders) }
  :: d_step { !calm && usable(i) && idle(i) && !node[i].session && node[i].folders != 0 && broken(RanksErased) ->
       node[i].folders = 0;
       printf("fault: the folders of ranks in the state directory of instance %d are deleted\n", i) }
  od
}

/* --------------------------------------------------------------------------------------------------- what must hold */

#define breaks(what, condition) \
  d_step { (ONLY == 0 || ONLY == what) && (condition) -> printf("BROKEN: %e\n", what); assert(false) }
#define writes_unduly(a, i) (rank[a].process != NOBODY && rank[a].right && !(a == attempt && is_alive(a)))
#define lives_unduly(a, i)  (rank[a].state == GONE && lives(a, i))
#define outlives(a, i)      (lives(a, i) && !(limit_over && is_lost(a, i)))

proctype Promises() {
  do
  :: breaks(OnlyNewestIsVisible, any(writes_unduly, 0))
  :: breaks(GoneIsProven, any(lives_unduly, 0))
  :: breaks(CancelledIsEmpty, job == CANCELLED && any(outlives, 0))
  :: d_step { CALMS_DOWN && !calm && !over -> calm = true; printf("from now on nothing fails\n") }
  :: atomic { calm && !rested && timeout ->
       promise(JobEnds, job_ended);
       promise(SlotIsFreeAgain, none(is_unproven, 0));
       rested = true }
  od
}

/* Once nothing fails, everything comes to rest: everybody does what is left to do, and no two go on for ever. */
ltl comes_to_rest { [] (calm -> <> rested) }

init {
  byte k;
  d_step {
    for (x : 0 .. 3) {
      rank[x].state = UNUSED;
      rank[x].claim = NOBODY; rank[x].starter = NOBODY; rank[x].process = NOBODY
    };
    for (y : 0 .. 1) {
      booted[y] = boots; boots++;
      Born(born, y, booted[y], y, 0);
      node[y].session = true;
      name[y].held = true; name[y].holder = y
    };
    x = 0; y = 0;
    Place(0)
  };
  atomic {
    for (k : 0 .. INSTANCES - 1) { run Agent(k); run Session(k); run Fault(k) };
    for (k : 1 .. ATTEMPTS) { run Worker(k); run Operator(k) };
    run Leader(0); run Leader(1);
    run User();
    run Promises()
  }
}
