from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ("sqlqueue", "0004_hourly_statistic"),
    ]

    operations = [
        migrations.CreateModel(
            name="Overview",
            fields=[],
            options={
                "verbose_name": "overview",
                "verbose_name_plural": "overview",
                "proxy": True,
                "default_permissions": ("view",),
                "indexes": [],
                "constraints": [],
            },
            bases=("sqlqueue.topic",),
        ),
    ]
