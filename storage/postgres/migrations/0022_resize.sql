-- Works with programs that know 20 migrations.
--
-- They place a job on min_slots and know of no resize; one that is under way is for them a job that was preempted.
--
-- A job may run on any number of slots from min_slots to max_slots, which its users may change. `resize`: what it leaves
-- its newest attempt for (storage/records/job.h, ResizeRecord). `logical_ranks`: how many slots make sense; 0: not known.
ALTER TABLE jobs ADD COLUMN logical_ranks integer NOT NULL DEFAULT 0, ADD COLUMN resize jsonb;
ALTER TABLE ended_jobs ADD COLUMN logical_ranks integer NOT NULL DEFAULT 0, ADD COLUMN resize jsonb;
