"""Each row of the tables in docs/moving, by its first cell, with the tests that execute what its cell of sqlqueue says.
What no test of a part executes is in tests/test_moving_rows_run.py.

tests/test_moving_pages.py compares this with the pages and with the tests that there are.
"""

SCENARIOS = "tasks/test_scenarios.py::"
LIMITS = "consumers/test_group_limits.py::"
PUBLISH = "log/test_publish.py::"
REBALANCE = "races/test_rebalance.py::"
ROWS = "test_moving_rows_run.py::"
RESULTS = "consumers/test_results.py::"
PAGE = "test_docs.py::test_the_blocks_of_a_document_are_true"  # the example on the page itself

# Without "tests/".
CELERY: dict[str, tuple[str, ...]] = {
    "broker, result backend": (PAGE,),
    "`@shared_task`": (SCENARIOS + "test_a_task_is_enqueued_in_the_callers_transaction", PAGE),
    "`add.delay(1, 2)`, `transaction.on_commit(add.delay)`": (
        SCENARIOS + "test_a_task_is_enqueued_in_the_callers_transaction",
        PUBLISH + "test_a_message_is_rolled_back_with_the_callers_rows",
    ),
    "`apply_async(countdown=60)`, `eta=`": (
        "log/test_schedule.py::test_the_delay_counts_from_now_by_the_databases_clock",
        "log/test_schedule.py::test_a_time_is_that_moment_in_any_zone",
        SCENARIOS + "test_run_after",
        PAGE,
    ),
    "`apply_async(expires=60)`": (
        "consumers/test_expiry.py::test_what_expired_is_a_dead_letter_and_its_handler_is_not_called",
        "consumers/test_expiry.py::test_its_replay_and_its_copies_do_not_expire",
        "tasks/test_identity.py::test_a_task_that_would_begin_too_late_fails_and_does_not_run",
    ),
    "`apply_async(task_id=…)`": (
        PUBLISH + "test_it_is_no_second_message_and_changes_nothing_of_the_first",
        "tasks/test_identity.py::test_a_known_id_is_that_task_in_whichever_queue",
    ),
    "`revoke(id)`": ("log/test_scheduled.py::test_in_time", "log/test_scheduled.py::test_too_late"),
    "`AsyncResult(id).get(timeout=5)`": (
        SCENARIOS + "test_get_result",
        "stats/test_waiting.py::test_it_returns_the_status_of_then",
    ),
    "`.delay(…).get(timeout=5)`": (
        "log/test_calls.py::test_is_what_the_handler_returned",
        "log/test_calls.py::test_a_dead_letter_raises_at_the_caller",
    ),
    "`return value` with a result backend": (RESULTS + "test_the_result_is_what_the_handler_returned", PAGE),
    '`self.update_state(state="PROGRESS", meta=…)`': (
        "consumers/test_progress.py::test_it_is_seen_while_the_handler_runs_and_gone_when_it_is_done",
    ),
    "`autoretry_for`, `dont_autoretry_for`": (
        "consumers/test_retrying.py::test_reject_for_wins_over_retry_for_and_all_others_are_rejected",
        "consumers/test_outcomes.py::test_any_exception_is_one_with_its_traceback",
    ),
    "`max_retries=3`": (PAGE, "consumers/test_outcomes.py::test_after_the_last_attempt_it_is_copied_with_all_that_was"),
    "`retry_backoff`, `retry_jitter`, `retry_backoff_max`": (
        "consumers/test_outcomes.py::test_the_backoff_doubles_up_to_its_bound",
        "consumers/test_outcomes.py::test_the_jitter_spreads_it",
    ),
    "`raise self.retry(countdown=10)`": ("consumers/test_outcomes.py::test_with_a_delay_of_its_own",),
    "`raise Reject(requeue=False)`, `raise Ignore()`": (
        "consumers/test_outcomes.py::test_a_rejected_message_is_one_at_once",
        "consumers/test_outcomes.py::test_it_is_acked_and_leaves_no_row",
    ),
    "`acks_late=True`, `reject_on_worker_lost=True`": (
        "faults/test_kills.py::test_a_message_that_ends_its_process_is_dead_lettered_and_its_neighbours_are_not",
        "faults/test_kills.py::test_a_message_without_a_bound_of_attempts_that_ends_its_process_is_a_dead_letter_too",
    ),
    "`task_time_limit`, `visibility_timeout` of the broker": (
        "consumers/test_timeouts.py::test_a_handler_that_overruns_is_superseded_and_its_outcome_ignored",
        "consumers/test_timeouts.py::test_extend_gives_a_handler_more_time",
        "tasks/test_defaults_document.py::test_the_table_has_every_option_that_tasks_have_with_both_defaults",
    ),
    "queues, routing": (
        "consumers/test_groups.py::test_every_group_gets_every_message",
        "tasks/test_priorities.py::test_queues_are_topics_with_ten_priorities",
    ),
    "`priority=`": (
        ROWS + "test_of_messages_priority_0_is_delivered_first",
        "tasks/test_priorities.py::test_tasks_run_by_exact_priority_over_all_partitions",
    ),
    "beat, `crontab(…)`": (
        ROWS + "test_a_cron_expression_ticks_every_night_and_each_tick_is_published_once",
        "faults/test_periodic_kills.py::test_no_tick_is_lost_or_published_twice",
    ),
    "`chain(a, b)`, `on_error`": (
        ROWS + "test_an_atomic_handler_commits_its_step_and_the_next_message_together",
        "contrib/batches/test_chains.py::test_it_is_finished_after_its_last_step",
        "contrib/batches/test_chains.py::test_a_step_that_fails_fails_the_chain_which_goes_on_after_a_replay",
    ),
    "`rate_limit` of a worker": (
        LIMITS + "test_a_rate_holds_over_several_processes",
        LIMITS + "test_what_waits_for_its_token_is_charged_nothing_and_goes_on_when_the_limit_is_lifted",
    ),
    "`group`, `chord`": (
        "contrib/batches/test_ends.py::test_each_is_published_once_however_often_it_is_checked",
        "contrib/batches/test_ends.py::test_dead_members_count_as_failed_until_they_are_replayed",
        "contrib/batches/test_blocks.py::test_an_exception_leaves_nothing_of_it",
        "tasks/test_in_batches.py::test_its_callbacks_wait_for_them",
        "tasks/test_in_batches.py::test_after_an_exception_there_are_none",
    ),
    "`CELERY_TASK_ALWAYS_EAGER`": ("test_testing.py::test_they_are_settled_as_in_production_and_no_more", PAGE),
    "`celery worker -c 8`": (
        "management/test_runconsumers.py::test_two_processes_of_four_threads_run_eight_handlers_at_once",
    ),
    "Flower, `celery inspect`": (
        "admin/test_overview.py::test_what_failed_and_died_is_shown_and_linked",
        "management/test_queuestatus.py::test_how_groups_stand",
        "management/test_queuedoctor.py::test_groups_that_no_process_serves",
        "monitoring/test_metrics.py::test_what_becomes_of_deliveries_is_counted",
        "monitoring/test_metrics.py::test_they_are_what_the_tables_say",
    ),
}
KAFKA: dict[str, tuple[str, ...]] = {
    "cluster, ZooKeeper or KRaft, schema registry": (PAGE,),
    "topic, partitions": (
        PUBLISH + "test_their_number_is_the_settings_when_the_topic_was_first_used",
        "faults/test_alter.py::test_while_all_run_and_it_is_killed",
    ),
    "`producer.send(topic, key=…, value=…)`": (
        PUBLISH + "test_a_message_is_committed_with_the_callers_rows",
        PUBLISH + "test_a_message_is_rolled_back_with_the_callers_rows",
        PAGE,
    ),
    "transactional producer, idempotence": (
        ROWS + "test_a_transaction_and_an_id_make_a_publish_idempotent_across_restarts",
    ),
    "batching (`linger.ms`)": (PUBLISH + "test_many_keep_their_order",),
    "offset": (
        PUBLISH + "test_offset_id_and_created",
        ROWS + "test_offsets_are_one_sequence_for_all_topics_and_rise_within_a_partition_with_gaps",
    ),
    "consumer group, rebalance": (
        REBALANCE + "test_joiners_get_a_share_leavers_give_theirs_and_no_partition_is_handled_by_two_at_once",
        REBALANCE + "test_a_killed_consumers_partitions_move_when_its_leases_end",
    ),
    "`poll()` loop": ("consumers/test_pull.py::test_what_is_acked_never_comes_again", PAGE),
    "`auto.offset.reset`": (
        "consumers/test_groups.py::test_earliest_gets_what_the_log_holds",
        "consumers/test_groups.py::test_latest_gets_only_what_comes_after_its_registration",
    ),
    "`commitSync`, committed offset": (
        "consumers/test_ordering.py::test_a_failing_message_holds_back_its_own_key_and_no_other",
    ),
    "`max.poll.interval.ms`": ("consumers/test_timeouts.py::test_extend_gives_a_handler_more_time",),
    "zombie fencing": ("races/test_zombies.py::test_what_a_zombie_settles_changes_nothing",),
    "exactly-once (read-process-write)": (
        "consumers/test_atomic.py::test_writes_and_ack_are_there_together",
        "races/test_zombies.py::test_what_a_zombie_writes_atomically_is_rolled_back",
    ),
    "retry topics, dead-letter topic by hand": (
        "consumers/test_outcomes.py::test_after_the_last_attempt_it_is_copied_with_all_that_was",
        "admin/test_dead_letters.py::test_a_whole_fingerprint_is_replayed_after_a_trial",
        "operations/test_replay.py::test_each_goes_to_its_own_group_once",
    ),
    "`retention.ms`": (
        "log/test_collect.py::test_what_is_younger_is_kept",
        "log/test_collect.py::test_is_kept_while_a_registered_group_that_is_away_has_not",
    ),
    "compaction": (ROWS + "test_the_log_keeps_all_of_a_key_and_a_table_of_ones_own_the_latest_state",),
    "headers, timestamps": ("consumers/test_outcomes.py::test_it_tells_everything_of_the_message",),
    "Avro, JSON Schema, registry": (
        "payloads/test_typed_payloads.py::test_what_does_not_fit_is_refused_with_the_fields_path",
        "payloads/test_typed_payloads.py::test_what_an_older_publisher_wrote_wrongly_is_a_dead_letter_at_once",
        "payloads/test_typed_payloads.py::test_older_ones_are_brought_up_to_date",
        "payloads/test_typed_payloads.py::test_it_prints_every_topic_with_a_type",
    ),
    "`kafka-consumer-groups --reset-offsets`": (
        "management/test_queuegroup.py::test_a_dry_run_counts_and_changes_nothing",
        "management/test_queuegroup.py::test_a_time_means_what_was_published_since",
        "management/test_queuegroup.py::test_what_was_rewound_is_delivered_again",
        "management/test_queuegroup.py::test_what_is_unread_is_passed_over_once_that_is_confirmed",
    ),
    "`kafka-console-consumer`": ("management/test_queuetail.py::test_a_line_tells_place_key_id_and_payload",),
    "lag exporters, Cruise Control": (
        "admin/test_overview.py::test_a_group_that_is_away_is_told_and_its_backlog_counted",
        "management/test_queuestatus.py::test_how_groups_stand",
        "monitoring/test_metrics.py::test_they_are_what_the_tables_say",
    ),
    "Kafka Connect, Spark's source": (
        "contrib/spark/test_batch_read.py::test_messages_are_what_was_published",
        "contrib/spark/test_write.py::test_rows_become_messages",
        "contrib/spark/test_stream.py::test_what_is_available_is_read_once_and_the_group_stands_at_its_end",
        "contrib/spark/test_archive.py::test_is_every_message_of_the_topic_with_all_its_values",
    ),
    "MirrorMaker": (
        "replica/test_reads.py::test_what_only_looks_reads_the_replica",
        "soak/topologies/test_runs.py::test_what_the_database_keeps_through_its_failovers_is_delivered",
    ),
}
TASK_QUEUES: dict[str, tuple[str, ...]] = {
    "call it later": (SCENARIOS + "test_a_task_is_enqueued_in_the_callers_transaction", PAGE),
    "with the caller's transaction": (SCENARIOS + "test_a_task_is_enqueued_in_the_callers_transaction",),
    "not before a time": (*CELERY["`apply_async(countdown=60)`, `eta=`"], PAGE),
    "do it only once": CELERY["`apply_async(task_id=…)`"],
    "take it back": CELERY["`revoke(id)`"],
    "every night": CELERY["beat, `crontab(…)`"],
    "retries": (
        *CELERY["`autoretry_for`, `dont_autoretry_for`"],
        *CELERY["`max_retries=3`"],
        *CELERY["`retry_backoff`, `retry_jitter`, `retry_backoff_max`"],
    ),
    "what failed for good": KAFKA["retry topics, dead-letter topic by hand"],
    "a result": CELERY["`AsyncResult(id).get(timeout=5)`"],
    "a long job's progress": CELERY['`self.update_state(state="PROGRESS", meta=…)`'],
    "a worker dies": (
        "faults/test_kills.py::test_killed_consumers_lose_nothing_and_only_what_was_in_flight_comes_again",
        REBALANCE + "test_a_killed_consumers_partitions_move_when_its_leases_end",
    ),
    "order": (
        "consumers/test_ordering.py::test_order_per_key_holds_with_many_threads_and_failures",
        "consumers/test_ordering.py::test_order_holds_over_all_keys_with_many_threads_and_failures",
    ),
    "several readers of one message": ("consumers/test_groups.py::test_every_group_gets_every_message",),
    "read it again": (
        "management/test_queuegroup.py::test_what_was_rewound_is_delivered_again",
        "operations/test_replay.py::test_each_goes_to_its_own_group_once",
    ),
    "workers": ("management/test_runconsumers.py::test_two_processes_settle_everything_that_is_due_and_leave",),
    "locks, rate limits": (
        "consumers/test_ordering.py::test_order_per_key_holds_with_many_threads_and_failures",
        *CELERY["`rate_limit` of a worker"],
        LIMITS + "test_no_more_handlers_run_at_once_than_the_limit_in_several_processes",
    ),
    "tests": (*CELERY["`CELERY_TASK_ALWAYS_EAGER`"], "test_testing.py::test_published_lists_the_log_in_its_order"),
}
PAGES = {"from-celery.md": CELERY, "from-kafka.md": KAFKA, "from-task-queues.md": TASK_QUEUES}
