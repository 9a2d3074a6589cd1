-- Works with programs that know 21 migrations.
--
-- They see a job of `slot_step` above 1 as one of min_slots slots, and run it on so many. A job that they end loses both
-- columns: resumed, it has min_slots slots. If they change the range of a running one, `most_slots` stays, and a leader
-- of today goes by it until its user sets the range anew.
--
-- Groups of ranks share logical ranks (parallel.layout), so that a job takes slots in steps of a whole group.
-- `slot_step`: so many. 1: any number, or not known. `most_slots`: of such a job, its greatest number of slots, which
-- max_slots is of every other.
ALTER TABLE jobs ADD COLUMN slot_step integer NOT NULL DEFAULT 1 CHECK (slot_step >= 1);
ALTER TABLE jobs ADD COLUMN most_slots integer NOT NULL DEFAULT 0 CHECK (most_slots >= 0);
ALTER TABLE ended_jobs ADD COLUMN slot_step integer NOT NULL DEFAULT 1;
ALTER TABLE ended_jobs ADD COLUMN most_slots integer NOT NULL DEFAULT 0;
