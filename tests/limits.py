"""Every number in capitals of the package: each limit with a test that goes over it, and what is no limit, with why.

tests/test_limits.py compares this with the code, so that a new one is not forgotten.
"""

# module:constant (without the package's name), and the test that has more than it to do, or gives more.
OVER: dict[str, str] = {
    "admin.consumer_groups:MOST_PARTITIONS": "tests/admin/test_groups_and_topics.py::test_the_page_says_how_many_partitions_it_does_not_show",  # noqa: E501
    "admin.dead_letters:PAGE": "tests/admin/test_dead_letters.py::test_the_letters_are_paged",
    "admin.letter_orders:MOST_DISCARDED": "tests/admin/test_dead_letters.py::test_what_one_order_leaves_is_said_and_the_next_discards_it",  # noqa: E501
    "admin.messages:MOST_RECEIPTS": "tests/admin/test_messages.py::test_a_page_says_what_it_does_not_show",
    "admin.messages:MOST_SHOWN": "tests/admin/test_messages.py::test_a_page_says_what_it_does_not_show",
    "admin.orders:MOST_CHOSEN": "tests/admin/test_messages.py::test_more_than_one_order_may_be_about_are_refused_and_not_cut",  # noqa: E501
    "admin.orders:MOST_LISTED": "tests/admin/test_messages.py::test_an_order_lists_some_and_is_about_all",
    "conf:CENTURY": "tests/test_options.py::test_a_setting",
    "conf:MOST_PARTITIONS": "tests/test_options.py::test_a_setting",
    "conf:MOST_PAYLOAD": "tests/test_options.py::test_a_setting",
    "conf:MOST_PRIORITIES": "tests/test_options.py::test_a_topics_option",
    "conf:MOST_THREADS": "tests/test_options.py::test_a_setting",
    "consumers.in_transaction:TRIES": "tests/consumers/test_atomic.py::test_one_that_deadlocks_again_and_again_has_failed_an_attempt",  # noqa: E501
    "consumers.reader:CHANGES_AT_ONCE": "tests/consumers/test_over_limits.py::test_more_changes_by_hand_than_one_look_finds_are_all_noticed",  # noqa: E501
    "consumers.reader:FIRST_READ": "tests/consumers/test_reading.py::test_a_read_asks_for_few_messages_until_it_is_known_how_heavy_they_are",  # noqa: E501
    "consumers.registry:MOST_ATTEMPTS": "tests/test_options.py::test_a_consumers_option",
    "consumers.registry:MOST_OF_A_BATCH": "tests/test_options.py::test_a_consumers_option",
    "consumers.subscriber:RELEASED_AT_ONCE": "tests/consumers/test_over_limits.py::test_everything_is_handled_once_and_in_order",  # noqa: E501
    "consumers.throttle:MOST": "tests/consumers/test_over_limits.py::test_everything_is_handled_once_and_in_order",
    "consumers.supervisor:STARTS_TRIED": "tests/management/test_runconsumers.py::test_processes_that_cannot_start_end_it",  # noqa: E501
    "consumers.suspects:TURN": "tests/consumers/test_suspects.py::test_others_are_delivered_between_them_and_never_beside_one",  # noqa: E501
    "core.bounds:DAY": "tests/test_options.py::test_a_setting",
    "core.bounds:MOST_ATTEMPTS": "tests/test_options.py::test_a_whole_number_of_a_verb",
    "core.bounds:SHORTEST": "tests/test_options.py::test_a_setting",
    "core.codec:DEEPEST": "tests/log/test_refusals.py::test_json_that_is_nested_deeper_than_the_database_keeps",
    "core.fingerprint:LENGTH": "tests/log/test_redrive.py::test_of_a_failure_that_is_told_at_length",
    "core.keys:GROUP_LENGTH": "tests/test_options.py::test_a_consumers_option",
    "core.keys:ID_LENGTH": "tests/log/test_refusals.py::test_keys_and_ids_that_could_not_be_kept_whole",
    "core.keys:KEY_LENGTH": "tests/log/test_refusals.py::test_keys_and_ids_that_could_not_be_kept_whole",
    "core.keys:TOPIC_LENGTH": "tests/log/test_refusals.py::test_a_topic_that_is_no_name",
    "core.orphans:LONGEST": "tests/core/test_orphans.py::test_trials_that_fail_become_rare",
    "core.outcomes:ERROR_LENGTH": "tests/core/test_outcomes.py::test_the_end_of_a_long_traceback_is_kept",
    "core.stream:HANDED_SIZE": "tests/core/test_stream.py::test_no_more_heavy_messages_are_read_than_memory_is_meant_for",  # noqa: E501
    "core.stream:HEADS_LIMIT": "tests/core/test_stream.py::test_no_more_heads_than_their_limit_are_remembered_before_reading_stops",  # noqa: E501
    "core.stream:READY_SIZE": "tests/core/test_stream.py::test_no_more_heavy_messages_are_read_than_memory_is_meant_for",  # noqa: E501
    "core.stream:SCAN_LIMIT": "tests/core/test_stream.py::test_what_waits_in_a_range_is_handed_out_in_order_once_its_key_goes_on",  # noqa: E501
    "core.stream:WINDOW_LIMIT": "tests/core/test_stream.py::test_no_more_than_a_window_is_read_beyond_an_open_transaction",  # noqa: E501
    "core.window:LATE_LIMIT": "tests/core/test_window.py::test_more_late_commits_than_one_look_finds_are_found_by_the_next",  # noqa: E501
    "database.entry:SLOTS": "tests/races/test_horizon.py::test_more_publishers_than_slots_are_all_waited_for",
    "database.faults:RERUNS": "tests/database/test_faults.py::test_a_verb_is_not_rerun_for_ever",
    "database.admission:DEEPEST_OF_MARIADB": "tests/log/test_refusals.py::test_json_that_is_nested_deeper_than_the_database_keeps",  # noqa: E501
    "database.admission:DEEPEST_OF_MYSQL": "tests/log/test_refusals.py::test_json_that_is_nested_deeper_than_the_database_keeps",  # noqa: E501
    "database.migrating:TRIES": "tests/database/test_migrating.py::test_publishers_do_not_wait_behind_a_migration_that_waits_for_a_reader",  # noqa: E501
    "database.nodes:IDENTITY_LENGTH": "tests/database/test_nodes.py::test_servers_on_hosts_with_long_names_have_different_identities",  # noqa: E501
    "database.plain:ROWS_AT_ONCE": "tests/database/test_plain.py::test_a_result_is_read_past_what_is_fetched_at_once",
    "database.plain:TRIES": "tests/database/test_plain.py::test_contention_that_does_not_end_is_told",
    "database.weight:LIGHT": "tests/log/test_weight.py::test_a_bulk_is_published_in_one_transaction",
    "database.weight:LONG": "tests/log/test_weight.py::test_what_is_not_refused_is_taken",
    "database.weight:STATEMENT": "tests/log/test_weight.py::test_long_errors_of_a_batch_are_all_kept",
    "exceptions:LONGEST_DELAY": "tests/test_options.py::test_a_delay",
    "leases.acquire:AT_ONCE": "tests/test_over_limits.py::test_partitions_are_taken_past_one_transaction",
    "leases.acquire:ROWS_AT_ONCE": "tests/leases/test_takeover.py::test_however_many_rows_there_are_all_are_remembered",
    "leases.hold:PLACES_AT_ONCE": "tests/consumers/test_over_limits.py::test_everything_is_handled_once_and_in_order",
    "log.bell:MOST_ADDRESSES": "tests/consumers/test_over_limits.py::test_a_consumer_beyond_those_that_are_rung_hears_of_news_by_itself",  # noqa: E501
    "log.collect:BATCH": "tests/test_over_limits.py::test_collection_goes_past_one_batch",
    "log.collect:CHUNK": "tests/test_over_limits.py::test_collection_goes_past_one_batch",
    "log.collect:STREAMS_AT_ONCE": "tests/test_over_limits.py::test_collection_goes_past_the_streams_of_one_statement",
    "log.fetch:STREAMS_OF_ONE_FETCH": "tests/consumers/test_over_limits.py::test_everything_is_handled_once_and_in_order",  # noqa: E501
    "log.fetch:WATCH_SPAN": "tests/consumers/test_over_limits.py::test_news_of_all_partitions_are_found_past_what_one_watch_passes",  # noqa: E501
    "log.letters:LEAST_READ": "tests/admin/test_dead_letters.py::test_of_which_topics_not_all_were_read_is_said",
    "log.letters:MOST_READ": "tests/admin/test_dead_letters.py::test_the_page_says_when_there_are_more",
    "log.letters:MOST_SHOWN": "tests/admin/test_dead_letters.py::test_how_many_kinds_are_not_shown_is_said",
    "log.letters:TOPICS_AT_ONCE": "tests/admin/test_dead_letters.py::test_failures_are_sorted_however_many_topics_there_are",  # noqa: E501
    "log.ranges:AT_ONCE": "tests/consumers/test_over_limits.py::test_everything_is_handled_once_and_in_order",
    "log.ranges:CHUNK": "tests/consumers/test_over_limits.py::test_everything_is_handled_once_and_in_order",
    "log.redeliver:AT_ONCE": "tests/test_over_limits.py::test_messages_are_redelivered_past_one_transaction",
    "log.redrive:AT_ONCE": "tests/test_over_limits.py::test_dead_letters_are_redriven_past_one_transaction",
    "log.redrive:DISCARDED_AT_ONCE": "tests/test_over_limits.py::test_dead_letters_are_discarded_past_one_statement",
    "log.redrive:OFFSETS_AT_ONCE": "tests/log/test_redrive.py::test_are_redriven",
    "log.redrive:MOST_AT_ALL": "tests/test_options.py::test_a_whole_number_of_a_verb",
    "log.replay:AT_ONCE": "tests/test_over_limits.py::test_a_replay_goes_past_one_step",
    "log.replay:LEAST_RATE": "tests/test_options.py::test_a_rate",
    "log.replay:MOST_RATE": "tests/test_options.py::test_a_rate",
    "log.replay:NOTE_LENGTH": "tests/log/test_replay.py::test_a_reason_that_is_too_long_is_noted_as_far_as_it_goes_and_logged_whole",  # noqa: E501
    "log.reschedule:AT_ONCE": "tests/test_over_limits.py::test_messages_are_acknowledged_past_one_transaction",
    "log.schedule:MOVED_AT_ONCE": "tests/test_over_limits.py::test_scheduled_messages_move_past_one_turn",
    "log.search:SCANNED_AT_ONCE": "tests/log/test_search.py::test_a_key_in_steps",
    "log.search:STEPS": "tests/log/test_search.py::test_a_key_in_steps",
    "log.search:STREAMS_AT_ONCE": "tests/log/test_search.py::test_a_topic_from_both_ends",
    "log.seek:BRANCHES": "tests/observe/test_survey.py::test_a_time_has_a_place_in_the_log",
    "log.settle:CHUNK": "tests/consumers/test_over_limits.py::test_everything_is_handled_once_and_in_order",
    "log.tail:AT_ONCE": "tests/management/test_queuetail.py::test_it_reads_on_where_a_read_is_full",
    "management.arguments:HIGHEST_OFFSET": "tests/test_options.py::test_a_number_on_the_command_line",
    "management.arguments:MOST_PROCESSES": "tests/test_options.py::test_a_command_that_was_given_one",
    "management.commands.queuedlq:DISCARDED_AT_ONCE": "tests/test_over_limits.py::test_the_command_discards_past_one_call",  # noqa: E501
    "management.commands.queuepublish:AT_ONCE": "tests/test_over_limits.py::test_a_file_is_published_past_one_call",
    "models.hourly:AT_ONCE": "tests/test_over_limits.py::test_hours_are_stored_past_one_statement",
    "models.partition_lease:HOLDER_LENGTH": "tests/leases/test_leases.py::test_of_a_host_with_a_name_that_is_too_long_too",  # noqa: E501
    "observe.activity:FORGOTTEN_AT_ONCE": "tests/observe/test_over_limits.py::test_everything_that_is_old_is_forgotten",
    "observe.blocked:GROUPS_AT_ONCE": "tests/observe/test_over_limits.py::test_a_survey_of_many_statements_sees_what_there_is",  # noqa: E501
    "observe.facts:MOST_REFUSALS": "tests/observe/test_over_limits.py::test_the_doctor_says_that_more_was_refused",
    "observe.full:STREAMS_AT_ONCE": "tests/observe/test_over_limits.py::test_a_survey_of_many_statements_sees_what_there_is",  # noqa: E501
    "observe.shared_metrics:TRIES": "tests/observe/test_over_limits.py::test_figures_that_cannot_be_read_are_no_figures_and_come_back",  # noqa: E501
    "observe.survey:MOST_ROWS": "tests/observe/test_over_limits.py::test_where_the_counting_of_what_waits_ends_the_lag_is_told_to_be_estimated",  # noqa: E501
    "observe.survey:SAMPLE": "tests/observe/test_survey.py::test_a_long_backlog_is_reckoned",
    "observe.survey:STREAMS_AT_ONCE": "tests/observe/test_over_limits.py::test_a_survey_of_many_statements_sees_what_there_is",  # noqa: E501
    "observe.survey:TABLES_AT_ONCE": "tests/observe/test_over_limits.py::test_a_survey_of_many_statements_sees_what_there_is",  # noqa: E501
    "observe.window:SLOWEST": "tests/observe/test_window.py::test_a_client_that_trickles_is_left_when_its_whole_request_takes_too_long",  # noqa: E501
    "spark.archiving:ROWS_OF_A_FILE": "tests/spark/test_archive.py::test_is_everything_where_one_file_is_not_enough",
    "spark.arrow:BYTES": "tests/spark/test_plan.py::test_every_row_is_read_once",
    "spark.arrow:ROWS": "tests/spark/test_plan.py::test_every_row_is_read_once",
    "spark.plan:LEAST_ROWS": "tests/spark/test_plan.py::test_every_row_is_read_once",
    "spark.plan:MOST_STREAMS": "tests/spark/test_plan.py::test_every_row_is_read_once",
    "spark.ranges:BUCKETS": "tests/spark/test_plan.py::test_every_row_is_read_once",
    "spark.ranges:ROWS_OF_ONE_QUERY": "tests/spark/test_plan.py::test_every_row_is_read_once",
    "spark.ranges:ROWS_WORTH_PARTING": "tests/spark/test_plan.py::test_every_row_is_read_once",
}

# What is no limit.
NO_LIMITS: dict[str, tuple[str, ...]] = {
    "a length of time between two looks or tries, or how long something is trusted": (
        "consumers.connections:CONNECTIONS_LAST",
        "consumers.dispatcher:OVERRUN_CHECK",
        "consumers.in_transaction:NOT_BEGUN_PAUSE",
        "consumers.pull:LOOK_AGAIN",
        "consumers.reader:RESCAN_AT_LEAST",
        "consumers.reader:RESCAN_SHARE",
        "consumers.reading_limits:EVERY",
        "consumers.recorder:FORGET_TURNS",
        "consumers.recorder:INTERVAL",
        "consumers.subscriber:DRAIN_CHECK",
        "consumers.subscriber:FIRST_PATIENCE",
        "consumers.subscriber:OPTIONS_CHECK",
        "consumers.subscriber:REGISTER_CHECK",
        "consumers.supervisor:FIRST_PAUSE",
        "consumers.supervisor:HUNG_LOOKS",
        "consumers.supervisor:LAST_CHANCE",
        "consumers.supervisor:LONGEST_PAUSE",
        "consumers.supervisor:SHORT_LIFE",
        "consumers.throttle:AHEAD",
        "database.entry:SLOT_SECONDS",
        "database.incarnation:MARGIN",
        "database.migrating:PAUSE",
        "database.migrating:WAIT",
        "leases.archivist:PAUSE",
        "log.bell:ADDRESSES_LAST",
        "log.bell:QUIET",
        "log.bell:RECOVERY",
        "log.replay:INTERVAL",
        "log.reset:PATIENCE",
        "management.commands.queuedlq:LOOK_EVERY",
        "management.commands.queuetail:PATIENCE",
        "observe.recent:PATIENCE",
        "observe.shared_metrics:YOUNG",
        "observe.spans:ASK_AGAIN",
        "spark.membership:ACQUIRE_TIMEOUT",
        "spark.membership:PROBE_TIMEOUT",
    ),
    "a unit": (
        "admin.durations:DAY",
        "admin.durations:HOUR",
        "admin.durations:MINUTE",
        "conf:WEEK",
    ),
    "an exit code": (
        "consumers.process:INTERRUPTED",
        "management.base:DECLINED",
        "management.base:INTERRUPTED",
        "management.base:UNREACHABLE",
        "management.commands.queuedoctor:HAS_ERRORS",
        "management.commands.queuedoctor:HAS_WARNINGS",
    ),
    "slack before what is left of a heap is swept": ("core.blocked:STALE",),
    "a name for a state, a duty or a mark": (
        "core.lanes:ACKED",
        "core.lanes:BEHIND",
        "core.lanes:HANDED",
        "core.lanes:HELD",
        "core.lanes:READY",
        "database.driver:FAILED",
        "database.driver:IN_TRANSACTION",
        "database.entry:ADVISORY",
        "database.entry:MARK",
        "database.gate:COLLECTOR",
        "database.gate:REPLAYER",
        "database.gate:SCHEDULER",
        "log.fetch:BY_HAND",
        "log.search:HIGHEST",
        "spark.archive:SCHEMA_VERSION",
    ),
    "how a page looks, or what it shows at first": (
        "admin.charts:BUCKETS",
        "admin.charts:HEIGHT",
        "admin.charts:WIDTH",
        "admin.overview:USUAL_HOURS",
        "consumers.keeper:FRAMES",
        "management.commands.queuebackfill:SHOWN",
    ),
    "from when on something is reported": (
        "admin.problems:OPEN_TOO_LONG",
        "consumers.event_loop:LOOKS",
        "consumers.event_loop:SLOW",
        "consumers.event_loop:STANDS_STILL",
        "consumers.residents:FAILING",
        "observe.doctor:CLOCK_TOLERANCE",
        "observe.doctor:CLOCK_WRONG",
        "observe.doctor:FULL",
        "observe.doctor:HELD_UP",
        "observe.doctor:OWN_CONNECTIONS",
        "observe.full:NEARLY",
        "observe.survey:HELD_BACK",
        "observe.survey:OVERDUE",
        "observe.survey:STANDS_STILL",
    ),
    "what a reckoning allows for besides what it counts": (
        "database.weight:OVERHEAD",
        "database.weight:VALUE",
    ),
    "how often something is measured, of which the best counts": ("observe.facts:LOOKS",),
}
