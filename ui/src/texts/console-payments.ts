export const payments = {
  by: { effect: "Effect", tenant: "Tenant", day: "Day" },
  revenue: "Revenue and GPU cost",
  revenueAbout:
    "The last 30 days by default, in the currency of machine prices (fleet → Machines). Revenue in money needs COMFYRELAY_TOKEN_VALUE.",
  noRevenue: "No jobs in this period.",
  about: "Payments as reported by the payment provider. To take tokens back manually, open the tenant.",
  empty: "No payments yet",
  emptyAdvice: "Payments appear here as soon as a payment provider reports one.",
  noneInPeriod: "No payments in this period",
  noneInPeriodAdvice: "Choose another period.",
  unknown: "unknown",
  columns: {
    jobs: "Jobs",
    tokens: "Tokens",
    revenue: "Revenue",
    seconds: "GPU seconds",
    cost: "GPU cost",
    who: "Tenant",
    refunded: "Refunded",
    currency: "Currency",
    at: "When",
  },
};
