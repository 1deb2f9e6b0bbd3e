# A budget that sends emails, and policies that launch instances while no autoscaling loop runs. Both are optional.

resource "aws_budgets_budget" "fleet" {
  count        = var.budget_usd_per_month == null ? 0 : 1
  name         = local.prefix
  budget_type  = "COST"
  limit_amount = format("%.2f", var.budget_usd_per_month)
  limit_unit   = "USD"
  time_unit    = "MONTHLY"

  cost_filter {
    name   = "TagKeyValue"
    values = [format("user:Name$%s", local.group)]
  }

  notification {
    notification_type          = "ACTUAL"
    comparison_operator        = "GREATER_THAN"
    threshold                  = 80
    threshold_type             = "PERCENTAGE"
    subscriber_email_addresses = [var.budget_email]
  }

  notification {
    notification_type          = "FORECASTED"
    comparison_operator        = "GREATER_THAN"
    threshold                  = 100
    threshold_type             = "PERCENTAGE"
    subscriber_email_addresses = [var.budget_email]
  }

  lifecycle {
    precondition {
      condition     = var.budget_email != null
      error_message = "Set budget_email with budget_usd_per_month."
    }
  }
}

resource "aws_autoscaling_policy" "from_zero" {
  count                   = var.cloudwatch_fallback ? 1 : 0
  name                    = local.from_zero
  autoscaling_group_name  = aws_autoscaling_group.fleet.name
  policy_type             = "StepScaling"
  adjustment_type         = "ChangeInCapacity"
  metric_aggregation_type = "Maximum"

  step_adjustment {
    metric_interval_lower_bound = 0
    scaling_adjustment          = 1
  }
}

# Only at zero workers: a step at 5 instances would add another one each minute.
resource "aws_cloudwatch_metric_alarm" "from_zero" {
  count               = var.cloudwatch_fallback ? 1 : 0
  alarm_name          = local.from_zero
  alarm_description   = "Jobs are waiting for ${local.group}, but it has no workers."
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  evaluation_periods  = 1
  treat_missing_data  = "notBreaching"
  alarm_actions       = [aws_autoscaling_policy.from_zero[0].arn]

  metric_query {
    id          = "depth"
    return_data = false

    metric {
      namespace   = var.cloudwatch_namespace
      metric_name = "QueueDepth"
      period      = 60
      stat        = "Maximum"
      dimensions  = local.dimensions
    }
  }

  metric_query {
    id          = "workers"
    return_data = false

    metric {
      namespace   = var.cloudwatch_namespace
      metric_name = "ActiveWorkers"
      period      = 60
      stat        = "Maximum"
      dimensions  = local.dimensions
    }
  }

  metric_query {
    id          = "waiting"
    return_data = true
    expression  = "IF(FILL(workers, 0) < 1, depth, 0)"
    label       = "QueueDepth without a worker"
  }
}

resource "aws_autoscaling_policy" "backlog" {
  count                  = var.cloudwatch_fallback ? 1 : 0
  name                   = local.backlog
  autoscaling_group_name = aws_autoscaling_group.fleet.name
  policy_type            = "TargetTrackingScaling"

  target_tracking_configuration {
    target_value = 2
    # only the control plane knows which instance can stop
    disable_scale_in = true

    customized_metric_specification {
      metric_name = "BacklogPerInstance"
      namespace   = var.cloudwatch_namespace
      statistic   = "Average"

      dynamic "metric_dimension" {
        for_each = local.dimensions

        content {
          name  = metric_dimension.key
          value = metric_dimension.value
        }
      }
    }
  }
}
