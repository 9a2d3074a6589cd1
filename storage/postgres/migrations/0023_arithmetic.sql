-- Works with programs that know 21 migrations.
--
-- They place jobs without looking at how nodes compute; ranks that differ then fail when they meet.
--
-- The scheduler keeps the ranks of a job to nodes that compute alike. `arithmetic_rule`: as its users asked for
-- (storage/records/job.h, ArithmeticRule); '': not known, of a server of before, which also loses it of a job that ends
-- there and is resumed. `arithmetic`: what a job of the rule SAME is bound to, once it has been RUNNING. Of ended jobs
-- nothing is checked: their rows come from `jobs`, and a check would read all of history.
ALTER TABLE jobs
  ADD COLUMN arithmetic_rule text NOT NULL DEFAULT '' CHECK (arithmetic_rule IN ('', 'ANY', 'SAME_IN_ATTEMPT', 'SAME')),
  ADD COLUMN arithmetic text NOT NULL DEFAULT '',
  ADD CONSTRAINT only_same_is_bound CHECK (arithmetic = '' OR arithmetic_rule = 'SAME');
ALTER TABLE ended_jobs
  ADD COLUMN arithmetic_rule text NOT NULL DEFAULT '', ADD COLUMN arithmetic text NOT NULL DEFAULT '';
