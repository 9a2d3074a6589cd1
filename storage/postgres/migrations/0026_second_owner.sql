-- Works with programs that know 21 migrations.
--
-- They kill all ranks of a gang that lost one, and the job goes on from its newest checkpoint.
--
-- `second_owner`: each rank of the job has the whole state, and leaves it in memory when another one is lost
-- (parallel.second_owner). False of a job that a server of before has submitted, or ended and resumed.
ALTER TABLE jobs ADD COLUMN second_owner boolean NOT NULL DEFAULT false;
ALTER TABLE ended_jobs ADD COLUMN second_owner boolean NOT NULL DEFAULT false;
